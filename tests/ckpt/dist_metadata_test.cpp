// The index of a distributed checkpoint: it is read as written and merged from parts, and every inconsistency is found.
// tests/oracles compares with torch and Megatron.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "ckpt/dist_checkpoint.h"
#include "formats/pickle.h"
#include "support/errors.h"

namespace braid {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Sizes = std::vector<std::int64_t>;

// Consecutive chunks in a file, each with room for its bytes.
class Builder {
 public:
  Builder& tensor(const std::string& key, const Sizes& shape, const std::vector<std::pair<Sizes, Sizes>>& chunks) {
    DistTensor& tensor = metadata_.tensors[key] = {.dtype = StoredDtype::F32, .shape = shape};
    for (const auto& [begin, size] : chunks) tensor.chunks.push_back({begin, size, next_part(1 << 20)});
    return *this;
  }
  Builder& object(const std::string& key) {
    metadata_.objects[key] = next_part(100);
    return *this;
  }
  DistMetadata take() { return std::move(metadata_); }

 private:
  FileRange next_part(std::int64_t length) {
    end_ += length;
    return {"__0_0.distcp", end_ - length, length};
  }
  DistMetadata metadata_;
  std::int64_t end_ = 0;
};

DistMetadata one_tensor(const Sizes& shape, const std::vector<std::pair<Sizes, Sizes>>& chunks) {
  return Builder().tensor("w", shape, chunks).take();
}

std::string first_problem(const DistMetadata& metadata) {
  const std::vector<Problem> problems = coverage_problems(metadata);
  return problems.empty() ? "none" : problems[0].what;
}

std::string reread_error(const DistMetadata& metadata) {
  return error_of<DataError>([&] { read_metadata(write_metadata(metadata), ".metadata"); });
}

TEST(DistMetadata, ComesBackAsWritten) {
  DistMetadata metadata = Builder()
                              .object("mimo.language.rng_state/shard_0.0_1.1")
                              .tensor("w", {4, 3}, {{{0, 0}, {2, 3}}, {{2, 0}, {2, 3}}})
                              .tensor("scalar", {}, {{{}, {}}})
                              .tensor("empty", {0, 4}, {{{0, 0}, {0, 4}}})
                              .tensor("größe", {1}, {{{0}, {1}}})
                              .take();
  for (const StoredDtype dtype :
       {StoredDtype::F64, StoredDtype::F32, StoredDtype::F16, StoredDtype::BF16, StoredDtype::I64, StoredDtype::I32,
        StoredDtype::I16, StoredDtype::I8, StoredDtype::U8, StoredDtype::Bool}) {
    DistTensor& tensor = metadata.tensors[name_of(dtype)];
    tensor = metadata.tensors["w"];
    tensor.dtype = dtype;
  }
  EXPECT_EQ(read_metadata(write_metadata(metadata), ".metadata"), metadata);
  EXPECT_EQ(read_metadata(write_metadata({}), ".metadata"), DistMetadata{});
}

TEST(DistMetadata, PartsAddUp) {
  const DistMetadata whole =
      Builder().object("o").tensor("w", {4}, {{{0}, {2}}, {{2}, {2}}}).tensor("v", {1}, {}).take();
  DistMetadata first = whole, second;
  first.tensors["w"].chunks.pop_back();
  first.tensors.erase("v");
  first.objects.clear();
  second = whole;
  second.tensors["w"].chunks.erase(second.tensors["w"].chunks.begin());
  merge(first, second);
  EXPECT_EQ(first, whole);
}

TEST(DistMetadata, PartsThatContradictOneAnotherDoNotAddUp) {
  DistMetadata metadata = Builder().object("o").tensor("w", {4}, {{{0}, {2}}}).take();
  const auto merge_error = [&](const DistMetadata& other) {
    return error_of<DataError>([&] {
      DistMetadata into = metadata;
      merge(into, other);
    });
  };
  EXPECT_EQ(merge_error(Builder().tensor("w", {4}, {{{2}, {2}}}).take()), "no error");
  EXPECT_EQ(merge_error(Builder().tensor("w", {5}, {}).take()), "'w' is F32 [4] in one part and F32 [5] in another");
  EXPECT_EQ(merge_error(Builder().tensor("o", {5}, {}).take()), "'o' is a tensor in one part and an object in another");
  EXPECT_THAT(merge_error(Builder().object("o").take()), HasSubstr("the object 'o' occurs twice"));
  EXPECT_THAT(merge_error(Builder().object("w").take()), HasSubstr("'w' occurs twice"));
}

TEST(DistMetadata, ChunksThatTileTheirTensorAreFine) {
  EXPECT_EQ(first_problem(one_tensor({4, 3}, {{{0, 0}, {4, 3}}})), "none");
  EXPECT_EQ(first_problem(one_tensor({}, {{{}, {}}})), "none");
  EXPECT_EQ(first_problem(one_tensor({0, 4}, {})), "none");
  EXPECT_EQ(first_problem(one_tensor({0, 4}, {{{0, 0}, {0, 4}}})), "none");
  EXPECT_EQ(first_problem(one_tensor({2}, {{{0}, {1}}, {{1}, {1}}, {{2}, {0}}})), "none") << "the third rank has none";
  const std::vector<std::pair<Sizes, Sizes>> whirl = {
      {{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}, {{1, 1}, {1, 1}}};
  EXPECT_EQ(first_problem(one_tensor({3, 3}, whirl)), "none") << "no line cuts this one through";
}

TEST(DistMetadata, ElementsWithoutAChunkAreNamed) {
  EXPECT_EQ(first_problem(one_tensor({4, 3}, {})), "element [0, 0] of 'w' (shape [4, 3]) is missing from all chunks");
  EXPECT_EQ(first_problem(one_tensor({4, 3}, {{{0, 0}, {4, 2}}})),
            "element [0, 2] of 'w' (shape [4, 3]) is missing from all chunks");
  EXPECT_EQ(first_problem(one_tensor({4}, {{{0}, {1}}, {{2}, {2}}})),
            "element [1] of 'w' (shape [4]) is missing from all chunks");
  EXPECT_EQ(first_problem(one_tensor({}, {})), "element [] of 'w' (shape []) is missing from all chunks");
}

TEST(DistMetadata, ElementsInSeveralChunksAreNamed) {
  EXPECT_EQ(first_problem(one_tensor({4}, {{{0}, {3}}, {{2}, {2}}})), "element [2] of 'w' (shape [4]) is in 2 chunks");
  EXPECT_EQ(first_problem(one_tensor({2, 2}, {{{0, 0}, {2, 2}}, {{1, 0}, {1, 1}}, {{1, 0}, {1, 2}}})),
            "element [1, 0] of 'w' (shape [2, 2]) is in 3 chunks");
  // As many elements as the tensor has, but not the same ones.
  EXPECT_EQ(first_problem(one_tensor({2, 2}, {{{0, 0}, {1, 2}}, {{0, 0}, {1, 1}}, {{1, 1}, {1, 1}}})),
            "element [0, 0] of 'w' (shape [2, 2]) is in 2 chunks");
}

// Compared with counting, for every choice of three boxes of a small tensor.
TEST(DistMetadata, FindsExactlyWhatCountingFinds) {
  std::vector<std::pair<Sizes, Sizes>> boxes;
  for (std::int64_t y = 0; y < 3; ++y)
    for (std::int64_t x = 0; x < 2; ++x)
      for (std::int64_t height = 1; y + height <= 3; ++height)
        for (std::int64_t width = 1; x + width <= 2; ++width) boxes.push_back({{y, x}, {height, width}});
  int fine = 0;
  for (const auto& a : boxes)
    for (const auto& b : boxes)
      for (const auto& c : boxes) {
        std::array<int, 6> counts{};
        for (const auto& [begin, size] : {a, b, c})
          for (std::int64_t y = 0; y < size[0]; ++y)
            for (std::int64_t x = 0; x < size[1]; ++x)
              ++counts[static_cast<std::size_t>((begin[0] + y) * 2 + begin[1] + x)];
        std::string expected = "none";
        for (std::size_t i = 0; i < counts.size() && expected == "none"; ++i)
          if (counts[i] != 1)
            expected = fmt::format("element [{}, {}] of 'w' (shape [3, 2]) is {}", i / 2, i % 2,
                                   counts[i] == 0 ? "missing from all chunks" : fmt::format("in {} chunks", counts[i]));
        ASSERT_EQ(first_problem(one_tensor({3, 2}, {a, b, c})), expected);
        fine += expected == "none";
      }
  EXPECT_GT(fine, 10);
}

TEST(DistMetadata, PartsOfAFileThatOverlapAreNamed) {
  DistMetadata metadata = Builder().object("o").tensor("w", {2}, {{{0}, {1}}, {{1}, {1}}}).take();
  metadata.tensors["w"].chunks[0].part.offset -= 1;
  const std::vector<Problem> problems = coverage_problems(metadata);
  ASSERT_THAT(problems, SizeIs(1));
  EXPECT_EQ(problems[0].what, "'o' and 'w' overlap at offset 99");
  EXPECT_EQ(problems[0].where, "__0_0.distcp");
  metadata.tensors["w"].chunks[0].part.file = "__1_0.distcp";
  EXPECT_THAT(coverage_problems(metadata), IsEmpty());
}

TEST(DistMetadata, ChunksThatCannotBeRightAreRefused) {
  EXPECT_EQ(reread_error(one_tensor({4}, {{{2}, {3}}})), ".metadata: 'w' of shape [4] has an invalid chunk [3] at [2]");
  EXPECT_THAT(reread_error(one_tensor({4}, {{{0, 0}, {4, 1}}})), HasSubstr("has an invalid chunk [4, 1] at [0, 0]"));
  EXPECT_THAT(reread_error(one_tensor({4}, {{{INT64_MAX}, {1}}})), HasSubstr("has an invalid chunk"));
  EXPECT_THAT(reread_error(one_tensor({4}, {{{-1}, {1}}})), HasSubstr("not a non-negative number"));
  EXPECT_THAT(reread_error(one_tensor({1 << 30, 1 << 30, 8}, {})), HasSubstr("more than 2^63 bytes"));
  EXPECT_THAT(reread_error(one_tensor({0, INT64_MAX, INT64_MAX}, {})), HasSubstr("more than 2^63 bytes"));
  EXPECT_THAT(reread_error(one_tensor(Sizes(65, 1), {})), HasSubstr("more than 64 dimensions"));
  EXPECT_THAT(reread_error(one_tensor({1 << 20}, {{{0}, {1 << 20}}})),
              HasSubstr("'w' at [0] needs 4194304 bytes, but its part of '__0_0.distcp' has 1048576"));
  EXPECT_THAT(reread_error(one_tensor({2}, {{{0}, {1}}, {{0}, {1}}})), HasSubstr("'w' at [0] is stored twice"));
}

TEST(DistMetadata, FilesOutsideTheFolderAreRefused) {
  for (const std::string& file : {std::string(), std::string("."), std::string(".."), std::string("../x"),
                                  std::string("/etc/passwd"), std::string("a/b"), std::string("a\0b", 3)}) {
    DistMetadata metadata = Builder().object("o").take();
    metadata.objects["o"].file = file;
    EXPECT_THAT(reread_error(metadata), HasSubstr("not the name of a file in this folder")) << file;
  }
  DistMetadata metadata = Builder().object("o").take();
  metadata.objects["o"].file = std::string(256, 'x');
  EXPECT_THAT(reread_error(metadata), HasSubstr("a file name has 256 characters"));
  metadata.objects["o"] = {"x", INT64_MAX, 1};
  EXPECT_THAT(reread_error(metadata), HasSubstr("'o' ends beyond 2^63 in 'x'"));
}

// An index that the writer would not produce: one piece of its bytes is replaced by another.
std::string replaced_error(const std::string& from, const std::string& to) {
  std::string bytes = write_metadata(Builder().object("o").tensor("w", {2}, {{{0}, {2}}}).take());
  const std::size_t at = bytes.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  bytes.replace(at, from.size(), to);
  return error_of<DataError>([&] { read_metadata(bytes, ".metadata"); });
}

TEST(DistMetadata, WhatIsNoIndexIsRefused) {
  EXPECT_THAT(error_of<DataError>([] { read_metadata("", "a/.metadata"); }), HasSubstr("a/.metadata: "));
  EXPECT_THAT(error_of<DataError>([] { read_metadata(write_pickle(pickle(3)), "a/.metadata"); }),
              HasSubstr("a/.metadata: this is not an index of a distributed checkpoint"));
  EXPECT_EQ(replaced_error("float32", "float32"), "no error");
  EXPECT_EQ(replaced_error("float32", "float8_e5m2"),
            ".metadata: 'w' has the dtype torch.float8_e5m2, which Braid does not support");
  EXPECT_THAT(replaced_error("float32", "hub"), HasSubstr("'torch.hub', which is not one that checkpoints use"));
  EXPECT_THAT(replaced_error("state_dict_metadata", "state_dict_metadatb"), HasSubstr("no state_dict_metadata in"));
  EXPECT_THAT(replaced_error("storage_data", "storage_datb"), HasSubstr("no storage_data in"));
  EXPECT_THAT(replaced_error("BytesStorageMetadata", "StorageMeta"), HasSubstr("neither a tensor nor an object"));
  EXPECT_THAT(replaced_error("_StorageInfo", "_StoragePrefix"), HasSubstr("storage_data has"));
  EXPECT_THAT(replaced_error("relative_path", "relative_pat2"), HasSubstr("no relative_path in"));
}

TEST(DistMetadata, KeysAndPlacesBelongTogether) {
  const PickleValue whole = read_pickle(write_metadata(Builder().object("o").take()), "", {"torch.*"});
  const PickleValue keys = find(whole, "state_dict_metadata"), places = find(whole, "storage_data");
  const auto error_with = [&](const PickleValue& some_keys, const PickleValue& some_places) {
    PickleObject root = *as<PickleObject>(whole);
    root.state = pickle_dict({{"state_dict_metadata", some_keys}, {"storage_data", some_places}});
    return error_of<DataError>(
        [&] { read_metadata(write_pickle(std::make_shared<PickleNode>(PickleNode{root})), ".metadata"); });
  };
  EXPECT_EQ(error_with(keys, places), "no error") << "the rest may be missing";
  EXPECT_EQ(error_with(pickle_dict({}), places), ".metadata: 'o' has bytes in '__0_0.distcp', but no chunk there");
  EXPECT_EQ(error_with(keys, pickle_dict({})), ".metadata: 'o' is not in any file");
  const PickleValue key = as<PickleDict>(keys)->items[0].second;
  EXPECT_EQ(error_with(pickle_dict({{"o", key}, {"o", key}}), places), ".metadata: 'o' occurs twice");
}

// 40 layers of 128 experts in 8 chunks each, and 100 000 objects: the size of a large run.
TEST(DistMetadata, LargeIndicesTakeNoTime) {
  Builder builder;
  std::vector<std::pair<Sizes, Sizes>> chunks;
  for (std::int64_t layer = 0; layer < 40; ++layer)
    for (std::int64_t expert = 0; expert < 128; ++expert)
      for (std::int64_t part = 0; part < 8; ++part) chunks.push_back({{layer, expert, 2 * part, 0}, {1, 1, 2, 4}});
  builder.tensor("experts", {40, 128, 16, 4}, chunks);
  for (int i = 0; i < 100'000; ++i) builder.object(fmt::format("object {}", i));
  DistMetadata metadata = builder.take();
  const std::clock_t start = std::clock();
  EXPECT_THAT(coverage_problems(metadata), IsEmpty());
  EXPECT_EQ(read_metadata(write_metadata(metadata), ".metadata"), metadata);
  metadata.tensors["experts"].chunks.pop_back();
  EXPECT_EQ(first_problem(metadata),
            "element [39, 127, 14, 0] of 'experts' (shape [40, 128, 16, 4]) is missing from all chunks");
  EXPECT_LT(std::clock() - start, 30 * CLOCKS_PER_SEC) << "more than n log n";
}

}  // namespace
}  // namespace braid
