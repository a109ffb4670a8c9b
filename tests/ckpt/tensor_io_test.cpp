// Shards of parameters read from a file: in every layout they are the slices of the whole parameter.
#include "ckpt/tensor_io.h"
#include <ATen/ATen.h>
#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "support/programs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TemporaryFolder;

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
}

// Two groups of rows q q k v, from one tensor each for q, k and v.
const ParamSpec kFused = {.name = "qkv", .shape = {8, 3}, .tp_dim = 0};
const std::vector<ForeignTensor> kParts = {
    {.name = "q", .shape = {4, 3}, .param = "qkv", .rows = {{0, 0, 2}, {2, 4, 2}}},
    {.name = "k", .shape = {2, 3}, .param = "qkv", .rows = {{0, 2, 1}, {1, 6, 1}}},
    {.name = "v", .shape = {2, 3}, .param = "qkv", .rows = {{0, 3, 1}, {1, 7, 1}}}};

// A file with the tensors of a parameter whose elements count up from 0.
void write_parts(const TemporaryFolder& folder, const at::Tensor& full, const std::vector<ForeignTensor>& parts) {
  std::vector<TensorInfo> infos;
  for (const ForeignTensor& part : parts) infos.push_back({part.name, StoredDtype::F32, part.shape});
  SafetensorsWriter writer(folder.path(), infos);
  for (const ForeignTensor& part : parts) writer.write(part.name, bytes_of(foreign_tensor(part, full)));
  writer.finish();
}

at::Tensor counting(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return at::arange(count, at::kFloat).view(shape);
}

TEST(Load, PartsAreTakenOutAndPutTogether) {
  const TemporaryFolder folder;
  const at::Tensor full = counting(kFused.shape);
  EXPECT_TRUE(foreign_tensor(kParts[1], full).equal(at::stack({full[2], full[6]})));
  write_parts(folder, full, kParts);
  const SafetensorsReader source(folder.path());
  check_tensors(kParts, source, {});
  check_cover(kParts, {kFused});
  at::Tensor all = at::full(kFused.shape, -1, at::kDouble);
  load_shard(kFused, {}, source, kParts, all);
  EXPECT_TRUE(all.equal(full.to(at::kDouble)));
  at::Tensor same_dtype = at::full(kFused.shape, -1, at::kFloat);
  load_shard(kFused, {}, source, kParts, same_dtype);
  EXPECT_TRUE(same_dtype.equal(full));
}

TEST(Load, ARankGetsItsSlice) {
  struct Case {
    ParamSpec spec;
    ShardCoordinates place;
    std::function<at::Tensor(const at::Tensor&)> slice;
  };
  const std::vector<Case> cases = {
      {kFused, {.tp = 1, .tp_size = 2}, [](const at::Tensor& t) { return t.slice(0, 4, 8); }},
      {{.name = "columns", .shape = {3, 8}, .tp_dim = 1},
       {.tp = 2, .tp_size = 4},
       [](const at::Tensor& t) { return t.slice(1, 4, 6); }},
      {{.name = "blocks", .shape = {8, 1, 3}, .tp_dim = 0, .tp_blocks = {4, 2, 2}},
       {.tp = 1, .tp_size = 2},
       [](const at::Tensor& t) {
         return at::cat({t.slice(0, 2, 4), t.slice(0, 5, 6), t.slice(0, 7, 8)});
       }},
      {{.name = "vector", .shape = {6}, .tp_dim = 0},
       {.tp = 2, .tp_size = 3},
       [](const at::Tensor& t) { return t.slice(0, 4, 6); }},
      {{.name = "experts", .shape = {4, 2, 6}, .tp_dim = 2, .expert = true},
       {.ep = 1, .ep_size = 2, .expt_tp = 1, .expt_tp_size = 3},
       [](const at::Tensor& t) { return t.slice(0, 2, 4).slice(2, 2, 4); }},
  };
  for (const Case& c : cases) {
    const TemporaryFolder folder;
    const at::Tensor full = counting(c.spec.shape);
    const auto parts =
        c.spec.name == "qkv" ? kParts : std::vector{whole_parameter("whole " + c.spec.name, c.spec.shape, c.spec.name)};
    write_parts(folder, full, parts);
    at::Tensor local = at::full(local_shape(c.spec, c.place), -1, at::kFloat);
    load_shard(c.spec, c.place, SafetensorsReader(folder.path()), parts, local);
    EXPECT_TRUE(local.equal(c.slice(full))) << c.spec.name << "\n" << local;
  }
}

// Other writers do not align: the three bytes before put the floats on an odd address.
TEST(Load, UnalignedTensorsAreRead) {
  const TemporaryFolder folder;
  std::string header =
      R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"w":{"dtype":"F32","shape":[2,1],"data_offsets":[3,11]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string text(8, '\0');
  text[0] = static_cast<char>(header.size());
  const float values[] = {1.5, -2.5};
  const std::string path = folder.write(
      "model.safetensors", text + header + "abc" + std::string(reinterpret_cast<const char*>(values), sizeof values));
  at::Tensor local = at::zeros({2, 1});
  load_shard({.name = "w", .shape = {2, 1}}, {}, SafetensorsReader(path), {whole_parameter("w", {2, 1}, "w")}, local);
  EXPECT_EQ(local[0].item<float>(), 1.5);
  EXPECT_EQ(local[1].item<float>(), -2.5);
}

TEST(Load, AFileThatDoesNotFitIsRefusedWithEverythingWrong) {
  const TemporaryFolder folder;
  const std::vector<TensorInfo> stored = {{"q", StoredDtype::F32, {4, 2}},
                                          {"v", StoredDtype::I8, {2, 3}},
                                          {"w", StoredDtype::F32, {1}},
                                          {"mtp.w", StoredDtype::F32, {1}}};
  SafetensorsWriter writer(folder.path(), stored);
  for (const TensorInfo& info : stored)
    writer.write(info.name, std::vector<std::byte>(static_cast<std::size_t>(braid::bytes_of(info))));
  writer.finish();
  try {
    check_tensors(kParts, SafetensorsReader(folder.path()), {"mtp."});
    FAIL() << "no error";
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(),
                AllOf(HasSubstr("4 problems"), HasSubstr("'q' has shape [4, 2], but the configuration needs [4, 3]"),
                      HasSubstr("'k' is missing"), HasSubstr("'v' has dtype I8"),
                      HasSubstr("'w' of shape [1] is not in the model"), Not(HasSubstr("mtp"))));
  }
}

TEST(Load, PartsOfOneParameterShareADtype) {
  const TemporaryFolder folder;
  const std::vector<TensorInfo> stored = {
      {"q", StoredDtype::F32, {4, 3}}, {"k", StoredDtype::F32, {2, 3}}, {"v", StoredDtype::BF16, {2, 3}}};
  SafetensorsWriter writer(folder.path(), stored);
  for (const TensorInfo& info : stored)
    writer.write(info.name, std::vector<std::byte>(static_cast<std::size_t>(braid::bytes_of(info))));
  writer.finish();
  const SafetensorsReader source(folder.path());
  check_tensors(kParts, source, {});
  try {
    check_dtypes(by_param(kParts), source);
    FAIL() << "no error";
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(), HasSubstr("'v' has dtype BF16, but 'q' has F32"));
  }
}

}  // namespace
}  // namespace braid
