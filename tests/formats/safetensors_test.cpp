// Safetensors files: what is written is read back, and every defect of a foreign file is reported.
#include "formats/safetensors.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "support/errors.h"
#include "support/programs.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::TemporaryFolder;

// The bytes of a file with this header and this many data bytes.
std::string file_with(const std::string& header, std::size_t data_bytes) {
  std::string text(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) text[i] = static_cast<char>(header.size() >> (8 * i));
  return text + header + std::string(data_bytes, 'x');
}

std::string length_only(std::uint64_t length, std::size_t more_bytes) {
  std::string text(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) text[i] = static_cast<char>(length >> (8 * i));
  return text + std::string(more_bytes, '{');
}

std::vector<std::byte> counting_bytes(std::int64_t count, int start) {
  std::vector<std::byte> bytes;
  for (std::int64_t i = 0; i < count; ++i) bytes.push_back(static_cast<std::byte>(start + i));
  return bytes;
}

const std::vector<TensorInfo> kTensors = {{"bytes", StoredDtype::U8, {3}},       {"weight", StoredDtype::F32, {2, 3}},
                                          {"half", StoredDtype::BF16, {5}},      {"scalar", StoredDtype::F64, {}},
                                          {"nothing", StoredDtype::F16, {0, 4}}, {"flags", StoredDtype::Bool, {2}},
                                          {"index", StoredDtype::I64, {2, 1, 1}}};

void write_all(SafetensorsWriter& writer) {
  for (std::size_t i = 0; i < kTensors.size(); ++i)
    writer.write(kTensors[i].name, counting_bytes(bytes_of(kTensors[i]), static_cast<int>(10 * i)));
  writer.finish();
}

void expect_all(const SafetensorsReader& reader) {
  EXPECT_THAT(reader.tensors(), SizeIs(kTensors.size()));
  for (std::size_t i = 0; i < kTensors.size(); ++i) {
    const StoredTensor* tensor = reader.find(kTensors[i].name);
    ASSERT_NE(tensor, nullptr) << kTensors[i].name;
    EXPECT_EQ(tensor->dtype, kTensors[i].dtype);
    EXPECT_EQ(tensor->shape, kTensors[i].shape);
    EXPECT_EQ(std::vector(tensor->data.begin(), tensor->data.end()),
              counting_bytes(bytes_of(kTensors[i]), static_cast<int>(10 * i)));
    const auto position = reinterpret_cast<std::uintptr_t>(tensor->data.data());
    EXPECT_EQ(position % static_cast<std::uintptr_t>(bytes_of(tensor->dtype)), 0u) << tensor->name;
  }
  EXPECT_EQ(reader.find("another"), nullptr);
}

TEST(Safetensors, OneFileComesBackAsWritten) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder.path(), kTensors);
  write_all(writer);
  EXPECT_EQ(writer.total_bytes(), 3 + 24 + 10 + 8 + 0 + 2 + 16);
  expect_all(SafetensorsReader(folder.path()));
  expect_all(SafetensorsReader(folder.path() + "/model.safetensors"));
}

TEST(Safetensors, ShardsComeBackAsWritten) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder.path(), kTensors, /*max_shard_bytes=*/30);
  write_all(writer);
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder.path())) files.push_back(entry.path().filename());
  std::sort(files.begin(), files.end());
  EXPECT_THAT(files, ElementsAre("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                 "model-00003-of-00003.safetensors", "model.safetensors.index.json"));
  expect_all(SafetensorsReader(folder.path()));
}

TEST(Safetensors, AWriteThatIsGivenUpLeavesNothing) {
  const TemporaryFolder folder;
  {
    SafetensorsWriter writer(folder.path(), kTensors);
    writer.write("bytes", counting_bytes(3, 0));
    EXPECT_THROW(writer.finish(), std::logic_error);
    EXPECT_THROW(writer.write("weight", counting_bytes(3, 0)), std::logic_error);
    EXPECT_THROW(writer.write("another", {}), std::logic_error);
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Safetensors, FilesThatCannotBeWhatTheyClaim) {
  struct Case {
    std::string contents, message;
  };
  const auto tensor = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"w":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  const std::vector<Case> cases = {
      {"", "0 bytes are too few"},
      {"1234567", "7 bytes are too few"},
      {length_only(1000, 20), "claims 1000 bytes, but the file has 28"},
      {length_only(100'000'001, 20), "more than the 100000000 that are allowed"},
      {length_only(~std::uint64_t{0}, 20), "claims 18446744073709551615 bytes"},
      {file_with("", 0), "not JSON"},
      {file_with("{\"w\":", 0), "not JSON"},
      {file_with("\xff\xfe", 0), "not JSON"},
      {file_with("[]", 0), "the header is a list"},
      {file_with("7", 0), "the header is a number"},
      {file_with(std::string(1'000'000, '['), 0), "the header is a list"},
      {file_with("{\"w\":" + std::string(1'000'000, '['), 0), "'w' is described by a list"},
      {file_with(R"({"w":{"dtype":{"a":1}}})", 0), "field 'dtype' of 'w' is an object"},
      {file_with(R"({"w":{"shape":[[1]]}})", 0), "field 'shape' of 'w' is a list"},
      {file_with(R"({"__metadata__":{"format":7}})", 0), "is a number"},
      {file_with(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"extra":[1]}})", 4), "'extra'"},
      {file_with(R"({"w":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}})", 4), "'shape' twice"},
      {file_with(R"({"w":{"shape":[1],"data_offsets":[0,4]}})", 4), "'w' has no dtype"},
      {file_with(R"({"w":{"dtype":"F32","data_offsets":[0,4]}})", 4), "'w' has no shape"},
      {file_with(R"({"w":{"dtype":"F32","shape":[1]}})", 4), "'w' has no data_offsets"},
      {file_with(tensor("F8_E4M3", "[4]", "[0,4]"), 4), "unknown dtype 'F8_E4M3'"},
      {file_with(tensor("F32", "[-1]", "[0,4]"), 4), "no shape of non-negative integers"},
      {file_with(tensor("F32", "[1.5]", "[0,4]"), 4), "no shape of non-negative integers"},
      {file_with(tensor("F32", "[null]", "[0,4]"), 4), "no shape of non-negative integers"},
      {file_with(tensor("F32", "[18446744073709551615]", "[0,4]"), 4), "no shape of non-negative integers"},
      {file_with(tensor("F32", "[99999999999999999999999]", "[0,4]"), 4), "no shape of non-negative integers"},
      {file_with(tensor("F32", "[4611686018427387904,4]", "[0,0]"), 0), "a shape that is too large"},
      {file_with(tensor("F32", "[9223372036854775807]", "[0,4]"), 4), "a shape that is too large"},
      {file_with(tensor("F32",
                        "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
                        "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]",
                        "[0,4]"),
                 4),
       "more than 64 dimensions"},
      {file_with(tensor("F32", "[2]", "[0,4]"), 4), "has 4 data bytes, but shape [2] of F32 needs 8"},
      {file_with(tensor("F32", "[1]", "[4,0]"), 4), "data_offsets [4, 0]"},
      {file_with(tensor("F32", "[1]", "[0,4]"), 3), "outside the file's 3 data bytes"},
      {file_with(tensor("F32", "[1]", "[0]"), 4), "no data_offsets of two"},
      {file_with(tensor("F32", "[1]", "[-4,0]"), 4), "no data_offsets of two"},
      {file_with(tensor("F32", "[1]", "[0,4]"), 5), "1 bytes at the end of the file belong to no tensor"},
      {file_with(tensor("F32", "[1]", "[2,6]"), 6), "data bytes 0 to 2 before tensor 'w'"},
      {file_with(R"({"v":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                     "w":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
                 6),
       "'w' overlaps"},
      {file_with(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
                     "w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                 2),
       "'w' is in the header twice"}};
  const TemporaryFolder folder;
  for (const Case& c : cases) {
    const std::string path = folder.write("model.safetensors", c.contents);
    const std::string error = error_of([&] { SafetensorsReader reader(path); });
    EXPECT_THAT(error, HasSubstr(c.message)) << c.contents.substr(0, 100);
    EXPECT_THAT(error, HasSubstr(path));
  }
}

TEST(Safetensors, EveryProblemOfAFileIsNamedAtOnce) {
  const TemporaryFolder folder;
  const std::string path =
      folder.write("model.safetensors", file_with(R"({"a":{"dtype":"X","shape":[],"data_offsets":[0,4]},
    "b":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]},"c":{"dtype":"F32","shape":[1],"data_offsets":[0,400]}})",
                                                  4));
  const std::string error = error_of([&] { SafetensorsReader reader(path); });
  for (const char* part : {"3 problems", "'a'", "'b'", "'c'"}) EXPECT_THAT(error, HasSubstr(part));
}

TEST(Safetensors, ThousandsOfProblemsAreCounted) {
  std::string header = "{";
  for (int i = 0; i < 5000; ++i) header += fmt::format(R"({}"t{}":{{"dtype":"X"}})", i ? "," : "", i);
  const TemporaryFolder folder;
  const std::string path = folder.write("model.safetensors", file_with(header + "}", 0));
  EXPECT_THAT(error_of([&] { SafetensorsReader reader(path); }), HasSubstr("and 4950 more problems"));
}

TEST(Safetensors, IndexesThatDoNotFitTheirShards) {
  struct Case {
    std::string index, message;
  };
  const std::vector<Case> cases = {
      {"", "not JSON"},
      {"[]", "the index is a list"},
      {"{}", "has no weight_map"},
      {R"({"weight_map": 7})", "a number"},
      {R"({"weight_map": {"w": 7}})", "a number at 'w'"},
      {R"({"weight_map": {"w": {"x": "y"}}})", "an object at 'w'"},
      {R"({"weight_map": {"w": "s.safetensors", "w": "s.safetensors"}})", "'w' is in the index twice"},
      {R"({"weight_map": {"w": "absent.safetensors"}})", "shard 'absent.safetensors', which is missing"},
      {R"({"weight_map": {"w": "../s.safetensors"}})", "'../s.safetensors', which is not a file name"},
      {R"({"weight_map": {"w": "/etc/passwd"}})", "'/etc/passwd', which is not a file name"},
      {R"({"weight_map": {"w": ".."}})", "'..', which is not a file name"},
      {R"({"weight_map": {"w": ""}})", "'', which is not a file name"},
      {R"({"weight_map": {"w": "s.safetensors\u0000"}})", "which is not a file name"},
      {R"({"weight_map": {"w": "folder"}})", "shard 'folder', which is missing"},
      {R"({"weight_map": {"w": "s.safetensors", "v": "s.safetensors"}})", "'v' is in 's.safetensors', but it is not"},
      {R"({"weight_map": {"v": "s.safetensors"}})", "tensor 'w' is in 's.safetensors', but not in the index"}};
  const TemporaryFolder folder;
  fs::create_directory(folder.path() + "/folder");
  folder.write("s.safetensors", file_with(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1));
  for (const Case& c : cases) {
    folder.write("model.safetensors.index.json", c.index);
    EXPECT_THAT(error_of([&] { SafetensorsReader reader(folder.path()); }), HasSubstr(c.message)) << c.index;
  }
  folder.write(
      "model.safetensors.index.json",
      R"({"metadata": {"total_size": 1, "more": [{"a": [null, 1.5]}]}, "weight_map": {"w": "s.safetensors"}})");
  EXPECT_THAT(SafetensorsReader(folder.path()).tensors(), SizeIs(1));
}

TEST(Safetensors, HostileIndexes) {
  const TemporaryFolder folder;
  const auto error_with = [&](const std::string& index) {
    folder.write("model.safetensors.index.json", index);
    return error_of([&] { SafetensorsReader reader(folder.path()); });
  };
  EXPECT_THAT(error_with(R"({"metadata":)" + std::string(150000, '[')), HasSubstr("not JSON"));
  EXPECT_THAT(error_with(R"({"metadata":)" + std::string(150000, '[') + std::string(150000, ']') + "}"),
              HasSubstr("has no weight_map"));
  EXPECT_LT(error_with(R"({"weight_map": {")" + std::string(1 << 20, 'x') + R"(": 7}})").size(), 1000u);
  fs::resize_file(folder.path() + "/model.safetensors.index.json", 100'000'001);
  EXPECT_THAT(error_of([&] { SafetensorsReader reader(folder.path()); }), HasSubstr("100000001 bytes, more than"));
}

TEST(Safetensors, FoldersWithoutOneClearSetOfWeights) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { SafetensorsReader reader(folder.path()); }), HasSubstr("neither model.safetensors nor"));
  EXPECT_THAT(error_of([&] { SafetensorsReader reader(folder.path() + "/no"); }), HasSubstr("No such file"));
  EXPECT_THAT(error_of([&] { SafetensorsReader reader("/dev/zero"); }), HasSubstr("is not a file"));
  folder.write("model.safetensors", "");
  folder.write("model.safetensors.index.json", "");
  EXPECT_THAT(error_of([&] { SafetensorsReader reader(folder.path()); }), HasSubstr("remove the stale one"));
}

TEST(Safetensors, AnEmptyFileOfTensorsIsFine) {
  const TemporaryFolder folder;
  const std::string path = folder.write("model.safetensors", file_with("{}  ", 0));
  EXPECT_THAT(SafetensorsReader(path).tensors(), IsEmpty());
}

}  // namespace
}  // namespace braid
