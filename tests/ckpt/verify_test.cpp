// Checkpoints damaged in every known way: each defect must be found and named with its file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "ckpt/checkpoint_tools.h"
#include "ckpt/small_checkpoint.h"
#include "formats/atomic_file.h"
#include "support/programs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

// "file: what" of every problem.
std::vector<std::string> problems_of(const std::string& folder) {
  std::vector<std::string> texts;
  for (const Problem& problem : verify_checkpoint(folder).problems)
    texts.push_back(fmt::format("{}: {}", problem.where, problem.what));
  return texts;
}

class Verify : public ::testing::Test {
 protected:
  // Two writers with 1.2 MB each, so that files have several blocks.
  Verify()
      : folder(testing::save(root.path() + "/checkpoints", 7,
                             {{"weight", at::arange(600'000, at::kFloat).view({600, 1000})},
                              {"bias", at::arange(5, at::kBFloat16)},
                              {"step", at::scalar_tensor(3, at::kLong)}},
                             2, {{"rng_state/shard_0_1", pickle(5)}})) {}

  std::string path(const std::string& name) const { return folder + "/" + name; }

  void flip(const std::string& name, std::int64_t offset) const {
    std::fstream file(path(name), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(offset);
    const int byte = file.get();
    file.seekp(offset);
    file.put(static_cast<char>(byte ^ 1));
    ASSERT_TRUE(file.good());
  }

  void cut(const std::string& name, std::int64_t bytes) const {
    fs::resize_file(path(name), fs::file_size(path(name)) - static_cast<std::uintmax_t>(bytes));
  }

  DistMetadata index() const { return read_metadata(testing::read_file(path(".metadata")), ".metadata"); }

  // As written by another program, whose index promises no checksums.
  void make_foreign(DistMetadata metadata) const {
    metadata.has_checksums = false;
    write_file(path(".metadata"), write_metadata(metadata));
    fs::remove(path(kChecksumFile));
  }

  const testing::TemporaryFolder root;
  const std::string folder;
};

TEST_F(Verify, WhatWasWrittenIsFoundSound) {
  const VerifyReport report = verify_checkpoint(folder);
  EXPECT_THAT(report.problems, IsEmpty());
  EXPECT_EQ(report.files, 6);  // two of data, index, common state, format, checksums
  EXPECT_GT(report.bytes, 2'400'000);
  EXPECT_EQ(report.tensors, 3u);
  EXPECT_EQ(report.objects, 1u);
  EXPECT_TRUE(report.has_checksums);
}

TEST_F(Verify, AFlippedBitSaysInWhichBytesAndOfWhichTensor) {
  flip("__1_0.distcp", 1'100'000);
  EXPECT_THAT(problems_of(folder), ::testing::ElementsAre(AllOf(HasSubstr("__1_0.distcp"),
                                                                HasSubstr("bytes 1048576 to"), HasSubstr("'weight'"))));
}

TEST_F(Verify, DamageInNeighbouringBlocksIsOneProblem) {
  flip("__1_0.distcp", 1'000'000);
  flip("__1_0.distcp", 1'100'000);
  EXPECT_THAT(problems_of(folder), ::testing::ElementsAre(HasSubstr("bytes 0 to 1")));
}

TEST_F(Verify, EveryProblemIsNamed) {
  flip("__0_0.distcp", 500'000);
  cut("__1_0.distcp", 1);
  fs::remove(path("common.pt"));
  EXPECT_THAT(problems_of(folder),
              ::testing::UnorderedElementsAre(AllOf(HasSubstr("__0_0.distcp"), HasSubstr("checksum")),
                                              AllOf(HasSubstr("__1_0.distcp"), HasSubstr("were written")),
                                              AllOf(HasSubstr("common.pt"), HasSubstr("No such file"))));
}

TEST_F(Verify, SmallFilesCountToo) {
  for (const char* name : {".metadata", "metadata.json", "common.pt", kChecksumFile}) {
    flip(name, 40);
    EXPECT_THAT(problems_of(folder), ::testing::Contains(HasSubstr(name))) << name;
    flip(name, 40);
    EXPECT_THAT(problems_of(folder), IsEmpty()) << name;
  }
}

TEST_F(Verify, SwappedFilesAreFound) {
  fs::rename(path("__0_0.distcp"), path("swap"));
  fs::rename(path("__1_0.distcp"), path("__0_0.distcp"));
  fs::rename(path("swap"), path("__1_0.distcp"));
  for (const bool checksums : {true, false}) {
    if (!checksums) make_foreign(index());
    for (const char* name : {"__0_0.distcp", "__1_0.distcp"})
      EXPECT_THAT(problems_of(folder), ::testing::Contains(HasSubstr(name))) << checksums;
  }
}

TEST_F(Verify, AHoleIsFound) {
  DistMetadata hole = index();
  hole.tensors["weight"].chunks.pop_back();
  make_foreign(hole);
  EXPECT_THAT(problems_of(folder),
              ::testing::ElementsAre(AllOf(HasSubstr("'weight'"), HasSubstr("missing from all chunks"))));
}

TEST_F(Verify, AnOverlapIsFound) {
  DistMetadata overlap = index();
  overlap.tensors["weight"].chunks.back().begin[0] -= 1;
  make_foreign(overlap);
  EXPECT_THAT(problems_of(folder), ::testing::Contains(AllOf(HasSubstr("'weight'"), HasSubstr("in 2 chunks"))));
}

TEST_F(Verify, AnArchiveMustBeWhatTheIndexSays) {
  DistMetadata other = index();
  other.tensors["bias"].dtype = StoredDtype::F16;
  make_foreign(other);
  EXPECT_THAT(problems_of(folder), ::testing::Each(AllOf(HasSubstr("'bias'"), HasSubstr("the index says F16"))));
  EXPECT_FALSE(problems_of(folder).empty());
}

TEST_F(Verify, WithoutChecksumsStructureIsCheckedAndValuesAreNot) {
  make_foreign(index());
  EXPECT_FALSE(verify_checkpoint(folder).has_checksums);
  flip("__1_0.distcp", 600'000);
  EXPECT_THAT(problems_of(folder), IsEmpty());
  cut("__1_0.distcp", 100);
  EXPECT_THAT(problems_of(folder), ::testing::ElementsAre(AllOf(HasSubstr("__1_0.distcp"), HasSubstr("truncated"))));
  fs::remove(path("__1_0.distcp"));
  EXPECT_THAT(problems_of(folder), ::testing::ElementsAre(HasSubstr("__1_0.distcp")));
}

TEST_F(Verify, ChecksumsThatWereWrittenMustBeThere) {
  fs::remove(path(kChecksumFile));
  EXPECT_THAT(problems_of(folder), ::testing::ElementsAre(HasSubstr("the checksums are missing")));
}

TEST_F(Verify, AFolderWithoutAnIndexIsNone) {
  const testing::TemporaryFolder empty;
  EXPECT_THAT(problems_of(empty.path()), ::testing::ElementsAre(HasSubstr("the index is missing")));
}

}  // namespace
}  // namespace braid
