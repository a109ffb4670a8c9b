// Checkpoints of several writers, read back in other boxes than they were written in. The oracle is the tensor itself:
// every box must be its slice, element for element.
#include "ckpt/dist_checkpoint.h"
#include <ATen/ATen.h>
#include <ATen/core/Tensor.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "ckpt/tensor_io.h"
#include "formats/torch_archive.h"
#include "support/errors.h"
#include "support/programs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::read_file;
using testing::TemporaryFolder;
namespace fs = std::filesystem;

using Shape = std::vector<std::int64_t>;
using Random = std::mt19937_64;

constexpr const char* kFormat =
    R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1})";

std::int64_t between(Random& random, std::int64_t least, std::int64_t most) {
  return std::uniform_int_distribution<std::int64_t>(least, most)(random);
}

struct Box {
  Shape begin, size;
};

at::Tensor slice(const at::Tensor& tensor, const Box& box) {
  at::Tensor part = tensor;
  for (std::size_t dim = 0; dim < box.begin.size(); ++dim)
    part = part.narrow(static_cast<std::int64_t>(dim), box.begin[dim], box.size[dim]);
  return part;
}

// Boxes that tile a shape: cut in two at a random index, repeatedly.
std::vector<Box> random_tiling(const Shape& shape, std::size_t most, Random& random) {
  std::vector<Box> boxes{{Shape(shape.size(), 0), shape}};
  while (boxes.size() < most && !shape.empty()) {
    const auto which = static_cast<std::size_t>(between(random, 0, std::ssize(boxes) - 1));
    const auto dim = static_cast<std::size_t>(between(random, 0, std::ssize(shape) - 1));
    if (boxes[which].size[dim] < 2) {
      if (between(random, 0, 9) == 0) break;
      continue;
    }
    Box right = boxes[which];
    const std::int64_t cut = between(random, 1, right.size[dim] - 1);
    boxes[which].size[dim] = cut;
    right.begin[dim] += cut;
    right.size[dim] -= cut;
    boxes.push_back(right);
  }
  return boxes;
}

Box random_box(const Shape& shape, Random& random) {
  Box box;
  for (const std::int64_t size : shape) {
    box.begin.push_back(between(random, 0, size));
    box.size.push_back(between(random, 0, size - box.begin.back()));
  }
  return box;
}

// Values that are as distinct as the dtype allows.
at::Tensor random_tensor(const Shape& shape, at::ScalarType dtype, Random& random) {
  at::Generator generator = at::detail::createCPUGenerator(random());
  return at::randint(0, dtype == at::kBool ? 2 : 120, shape, generator, at::kLong).to(dtype);
}

// A view with transposed dimensions and gaps in memory.
at::Tensor strided_ones(Shape shape, at::ScalarType dtype) {
  std::reverse(shape.begin(), shape.end());
  shape.push_back(2);
  Shape order;
  for (std::int64_t dim = std::ssize(shape) - 2; dim >= 0; --dim) order.push_back(dim);
  return at::ones(shape, dtype).select(-1, 1).permute(order);
}

// The other files of a checkpoint whose writers have finished.
void complete(const std::string& folder, const std::vector<const DistWriter*>& writers, bool checksums = true) {
  DistMetadata metadata;
  Checksums sums;
  for (const DistWriter* writer : writers) {
    merge(metadata, writer->metadata());
    for (const auto& [file, of_file] : writer->checksums()) sums[file] = of_file;
  }
  const auto put = [&](const std::string& name, const std::string& bytes) {
    write_file(folder + "/" + name, bytes);
    sums[name] = checksums_of(bytes);
  };
  put(".metadata", write_metadata(metadata));
  put("common.pt", write_archive(pickle_dict({{"iteration", pickle(7)}, {"checkpoint_version", pickle(3.0)}})));
  put("metadata.json", kFormat);
  if (checksums) write_file(folder + "/" + kChecksumFile, to_text(sums));
}

// Everything in one writer's file, with one chunk per tensor.
void write_whole(const std::string& folder, const std::map<std::string, at::Tensor>& tensors, bool checksums = true) {
  DistWriter writer(folder, 0);
  for (const auto& [key, tensor] : tensors)
    writer.add_tensor(key, tensor.sizes().vec(), Shape(static_cast<std::size_t>(tensor.dim()), 0), tensor);
  writer.finish();
  complete(folder, {&writer}, checksums);
}

at::Tensor read_whole(DistCheckpoint& checkpoint, const std::string& key) {
  const DistTensor& tensor = checkpoint.metadata().tensors.at(key);
  at::Tensor whole = at::empty(tensor.shape, scalar_type(tensor.dtype));
  checkpoint.read(key, Shape(tensor.shape.size(), 0), whole);
  return whole;
}

TEST(DistCheckpoint, AnyBoxOfAnyTilingInAnyDtypeComesBack) {
  Random random(1);
  const std::vector<Shape> shapes = {{}, {1}, {0}, {17}, {3, 0}, {12, 7}, {1, 9, 5}, {4, 1, 6, 3}};
  const std::vector<at::ScalarType> dtypes = {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong,
                                              at::kInt,    at::kShort, at::kChar, at::kByte,     at::kBool};
  const TemporaryFolder folder;
  std::map<std::string, at::Tensor> tensors;
  {
    DistWriter first(folder.path(), 0), second(folder.path(), 1), third(folder.path(), 2);
    const std::vector<DistWriter*> writers = {&first, &second, &third};
    for (const at::ScalarType dtype : dtypes)
      for (const Shape& shape : shapes) {
        const std::string key = fmt::format("{}.{}", at::toString(dtype), fmt::join(shape, "x"));
        const at::Tensor& tensor = tensors[key] = random_tensor(shape, dtype, random);
        for (const Box& box : random_tiling(shape, 6, random))
          writers[static_cast<std::size_t>(between(random, 0, 2))]->add_tensor(key, shape, box.begin,
                                                                               slice(tensor, box).contiguous());
      }
    for (DistWriter* writer : writers) writer->finish();
    complete(folder.path(), {&first, &second, &third});
  }
  DistCheckpoint checkpoint(folder.path());
  for (const auto& [key, tensor] : tensors) {
    const Shape shape = tensor.sizes().vec();
    for (int i = 0; i < 6; ++i) {
      const Box box = i == 0 ? Box{Shape(shape.size(), 0), shape} : random_box(shape, random);
      const at::ScalarType to_dtype = i < 3 ? tensor.scalar_type() : at::kDouble;
      at::Tensor to = i % 2 == 0 ? at::ones(box.size, to_dtype) : strided_ones(box.size, to_dtype);
      checkpoint.read(key, box.begin, to);
      EXPECT_TRUE(to.equal(slice(tensor, box).to(to_dtype))) << key << " " << i;
    }
  }
  checkpoint.check_rest();
}

// Rows of two writers that span many blocks, so that reads begin and end inside blocks.
class LargeCheckpoint : public ::testing::Test {
 protected:
  LargeCheckpoint() {
    DistWriter first(folder_.path(), 0), second(folder_.path(), 1);
    first.add_object("rng_state/shard_0_1", pickle_list({pickle("seed"), pickle(1)}));
    first.add_tensor("large", {900, 1300}, {0, 0}, large_.narrow(0, 0, 450).contiguous());
    second.add_tensor("large", {900, 1300}, {450, 0}, large_.narrow(0, 450, 450).contiguous());
    for (DistWriter* writer : {&first, &second}) {
      writer->add_tensor("experts", {2, 600, 700}, {writer == &first ? 0 : 1, 0, 0},
                         experts_.narrow(0, writer == &first ? 0 : 1, 1).contiguous());
      writer->finish();
    }
    complete(folder_.path(), {&first, &second});
  }

  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

  // The error of a reader that opens the checkpoint, reads all of it and checks the rest.
  std::string error_of_reading_all() const {
    return error_of<DataError>([&] {
      DistCheckpoint checkpoint(folder_.path());
      EXPECT_TRUE(read_whole(checkpoint, "large").equal(large_));
      EXPECT_TRUE(read_whole(checkpoint, "experts").equal(experts_));
      checkpoint.read_object("rng_state/shard_0_1");
      checkpoint.common();
      checkpoint.check_rest();
    });
  }

  const TemporaryFolder folder_;
  const at::Tensor large_ = at::arange(900 * 1300, at::kFloat).view({900, 1300});
  const at::Tensor experts_ = at::arange(2 * 600 * 700, at::kInt).view({2, 600, 700});
};

TEST_F(LargeCheckpoint, OnlyTheRowsThatAreWantedAreRead) {
  DistCheckpoint checkpoint(folder_.path());
  at::Tensor rows = at::empty({7, 1300});
  checkpoint.read("large", {446, 0}, rows);
  EXPECT_TRUE(rows.equal(large_.narrow(0, 446, 7)));
  EXPECT_EQ(checkpoint.bytes_read(), 7 * 1300 * 4);
  at::Tensor half_of_an_expert = at::empty({1, 300, 700}, at::kInt);
  checkpoint.read("experts", {1, 300, 0}, half_of_an_expert);
  EXPECT_TRUE(half_of_an_expert.equal(experts_.narrow(0, 1, 1).narrow(1, 300, 300)));
  EXPECT_EQ(checkpoint.bytes_read(), 7 * 1300 * 4 + 300 * 700 * 4);
}

TEST_F(LargeCheckpoint, ObjectsAndTheCommonStateComeBack) {
  DistCheckpoint checkpoint(folder_.path());
  EXPECT_EQ(to_text(checkpoint.read_object("rng_state/shard_0_1")), "['seed', 1]");
  ASSERT_TRUE(checkpoint.has_common());
  EXPECT_EQ(*as<std::int64_t>(find(checkpoint.common(), "iteration")), 7);
}

TEST_F(LargeCheckpoint, WhatIsAskedForMustBeThere) {
  DistCheckpoint checkpoint(folder_.path());
  const auto error = [&](const std::string& key, const Shape& begin, const Shape& size) {
    return error_of<DataError>([&] { checkpoint.read(key, begin, at::empty(size)); });
  };
  EXPECT_THAT(error("small", {0}, {1}), HasSubstr("has no tensor 'small'"));
  EXPECT_THAT(error("large", {0}, {1300}), HasSubstr("'large' has shape [900, 1300]"));
  EXPECT_THAT(error("large", {800, 0}, {101, 1}), HasSubstr("does not contain the box of [101, 1] at [800, 0]"));
  EXPECT_THAT(error("large", {-1, 0}, {1, 1}), HasSubstr("does not contain the box"));
  EXPECT_EQ(error("large", {900, 1300}, {0, 0}), "no error");
  EXPECT_THAT(error_of<DataError>([&] { checkpoint.read_object("large"); }), HasSubstr("has no object 'large'"));
}

TEST_F(LargeCheckpoint, DamageIsNamed) {
  const std::string undamaged = "no error";
  ASSERT_EQ(error_of_reading_all(), undamaged);
  Random random(2);
  for (const std::string name :
       {"__0_0.distcp", "__1_0.distcp", ".metadata", "common.pt", "metadata.json", kChecksumFile}) {
    const std::string bytes = read_file(path(name));
    for (int i = 0; i < 12; ++i) {
      std::string damaged = bytes;
      damaged[static_cast<std::size_t>(between(random, 0, std::ssize(bytes) - 1))] ^= static_cast<char>(1 << i % 8);
      write_file(path(name), damaged);
      EXPECT_THAT(error_of_reading_all(), HasSubstr(path(name)));
    }
    write_file(path(name), bytes.substr(0, static_cast<std::size_t>(between(random, 1, std::ssize(bytes) - 1))));
    EXPECT_THAT(error_of_reading_all(), HasSubstr(path(name)));
    if (name != kChecksumFile) {
      fs::remove(path(name));
      EXPECT_THAT(error_of_reading_all(), HasSubstr(name));
    }
    write_file(path(name), bytes);
  }
  fs::rename(path("__0_0.distcp"), path("other"));
  fs::rename(path("__1_0.distcp"), path("__0_0.distcp"));
  fs::rename(path("other"), path("__1_0.distcp"));
  EXPECT_THAT(error_of_reading_all(), AnyOf(HasSubstr(path("__0_0.distcp")), HasSubstr(path("__1_0.distcp"))));
}

TEST_F(LargeCheckpoint, AFlippedBitSaysWhereItIs) {
  std::fstream file(path("__0_0.distcp"), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp((1 << 20) + 17);
  file.put('!');
  file.close();
  EXPECT_THAT(error_of_reading_all(), HasSubstr("__0_0.distcp: bytes 1048576 to 2097151 differ from what was written"));
}

// Without checksums, as torch and Megatron write them, a reader may get arbitrary bytes: it must not crash, and may
// return only what the index promises or an error.
TEST(DistCheckpoint, ForeignFilesAreNotTrusted) {
  const TemporaryFolder folder;
  const at::Tensor tensor = at::arange(40, at::kFloat).view({8, 5});
  write_whole(folder.path(), {{"weight", tensor}}, /*checksums=*/false);
  const std::string path = folder.path() + "/__0_0.distcp", bytes = read_file(path);
  Random random(3);
  int refused = 0;
  for (int i = 0; i < 600; ++i) {
    std::string damaged = bytes;
    for (int flips = 0; flips <= i % 3; ++flips)
      damaged[static_cast<std::size_t>(between(random, 0, std::ssize(bytes) - 1))] = static_cast<char>(random());
    std::ofstream(path, std::ios::binary) << damaged;
    const std::string error = error_of<DataError>([&] {
      DistCheckpoint checkpoint(folder.path());
      EXPECT_FALSE(checkpoint.has_checksums());
      read_whole(checkpoint, "weight");
    });
    if (error == "no error") continue;
    EXPECT_THAT(error, HasSubstr(path));
    ++refused;
  }
  EXPECT_GT(refused, 30);
}

TEST(DistCheckpoint, AnArchiveMustBeWhatTheIndexSays) {
  const TemporaryFolder folder;
  const at::Tensor data = at::arange(6, at::kFloat).view({2, 3});
  DistWriter writer(folder.path(), 0);
  writer.add_tensor("weight", {2, 3}, {0, 0}, data);
  writer.finish();
  const auto error_with = [&](const std::function<void(DistTensor&)>& change) {
    DistMetadata metadata = writer.metadata();
    change(metadata.tensors["weight"]);
    write_file(folder.path() + "/.metadata", write_metadata(metadata));
    return error_of<DataError>([&] {
      DistCheckpoint checkpoint(folder.path());
      read_whole(checkpoint, "weight");
    });
  };
  EXPECT_EQ(error_with([](DistTensor&) {}), "no error");
  EXPECT_THAT(error_with([](DistTensor& tensor) { tensor.dtype = StoredDtype::BF16; }),
              AllOf(HasSubstr("__0_0.distcp"), HasSubstr("'weight'"), HasSubstr("is F32 of shape [2, 3]"),
                    HasSubstr("the index says BF16")));
  EXPECT_THAT(error_with([](DistTensor& tensor) {
                tensor.shape = tensor.chunks[0].size = {3, 2};
              }),
              HasSubstr("the index says F32 of shape [3, 2]"));
  EXPECT_THAT(error_with([](DistTensor& tensor) { tensor.shape = {3, 3}; }), HasSubstr("weight"));
  EXPECT_THAT(error_with([](DistTensor& tensor) { tensor.chunks[0].part.length -= 3; }), HasSubstr("__0_0.distcp"));
  EXPECT_THAT(error_with([](DistTensor& tensor) { tensor.chunks[0].part.length += 3; }), HasSubstr("is truncated"));
}

// Together, the readers find what one reader would.
TEST(DistCheckpoint, ReadersShareTheCheckOfFiles) {
  const TemporaryFolder folder;
  DistWriter first(folder.path(), 0), second(folder.path(), 1), third(folder.path(), 2);
  for (DistWriter* writer : {&first, &second, &third}) {
    const std::int64_t begin = 2 * (writer == &second) + 4 * (writer == &third);
    writer->add_tensor("weight", {6}, {begin}, at::ones({2}));
    writer->finish();
  }
  complete(folder.path(), {&first, &second, &third});
  fs::remove(folder.path() + "/__1_0.distcp");
  int found = 0;
  for (int reader = 0; reader < 3; ++reader)
    found += error_of<DataError>([&] { DistCheckpoint checkpoint(folder.path(), {reader, 3}); }) != "no error";
  EXPECT_EQ(found, 1);
}

TEST(DistCheckpoint, OtherFormatsAreRefused) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of<DataError>([&] { DistCheckpoint checkpoint(folder.path()); }),
              AllOf(HasSubstr(folder.path()), HasSubstr(".metadata")));
  write_whole(folder.path(), {{"weight", at::ones({2})}}, /*checksums=*/false);
  folder.write("metadata.json", R"({"sharded_backend": "zarr", "sharded_backend_version": 1})");
  EXPECT_THAT(error_of<DataError>([&] { DistCheckpoint checkpoint(folder.path()); }), HasSubstr("\"zarr\" version 1"));
  fs::remove(folder.path() + "/metadata.json");
  DistCheckpoint checkpoint(folder.path());
  EXPECT_TRUE(read_whole(checkpoint, "weight").equal(at::ones({2})));
}

// A long vector stored in thousands of pieces and read in thousands of others.
TEST(DistCheckpoint, ManyChunksAndManyBoxes) {
  constexpr std::int64_t kPieces = 5000;
  const TemporaryFolder folder;
  DistWriter writer(folder.path(), 0);
  for (std::int64_t i = 0; i < kPieces; ++i)
    writer.add_tensor("vector", {3 * kPieces}, {3 * i}, at::arange(3 * i, 3 * i + 3, at::kFloat));
  writer.finish();
  complete(folder.path(), {&writer});
  DistCheckpoint checkpoint(folder.path());
  at::Tensor all = at::zeros({3 * kPieces});
  for (std::int64_t begin = 0; begin < all.numel(); begin += 5)
    checkpoint.read("vector", {begin}, all.narrow(0, begin, std::min<std::int64_t>(5, all.numel() - begin)));
  EXPECT_TRUE(all.equal(at::arange(3 * kPieces, at::kFloat)));
}

TEST(DistWriter, NothingToWriteLeavesNoFile) {
  const TemporaryFolder folder;
  DistWriter writer(folder.path(), 3);
  writer.finish();
  EXPECT_TRUE(fs::is_empty(folder.path()));
  EXPECT_EQ(writer.bytes_written(), 0);
  EXPECT_TRUE(writer.metadata().tensors.empty());
}

TEST(DistWriter, AnUnfinishedFileIsTakenBack) {
  const TemporaryFolder folder;
  { DistWriter(folder.path(), 0).add_tensor("weight", {2}, {0}, at::ones({2})); }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(DistWriter, AnotherRunsFileInItsPlaceIsKept) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/__0_0.distcp";
  {
    DistWriter writer(folder.path(), 0);
    writer.add_tensor("a", {4}, {0}, at::ones({4}));
    fs::remove(path);
    std::ofstream(path) << "of another run";
    EXPECT_THROW(writer.finish(), DataError);
  }
  EXPECT_EQ(read_file(path), "of another run");
}

TEST(DistWriter, AFullDiskIsSaid) {
  const TemporaryFolder folder;
  fs::create_symlink("/dev/full", folder.path() + "/__0_0.distcp");
  DistWriter writer(folder.path(), 0);
  const std::string error = error_of<std::exception>([&] {
    writer.add_tensor("weight", {1 << 20}, {0}, at::ones({1 << 20}));
    writer.finish();
  });
  EXPECT_THAT(error, AllOf(HasSubstr(folder.path() + "/__0_0.distcp"), HasSubstr("No space left on device")));
}

}  // namespace
}  // namespace braid
