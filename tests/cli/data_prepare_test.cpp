// What braid data prepare says about the splits of a data set.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "cli/cli_support.h"
#include "data/shards/tar_files.h"

namespace braid {
namespace {

using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TemporaryFolder;

TEST(DataPrepare, TellsWhichShardsAreNotUsed) {
  const TemporaryFolder folder;
  const std::string data = folder.path() + "/tars";
  testing::write_shards(data, {1, 2, 3}, "s");
  EXPECT_THAT(braid({"data", "prepare", data, "--split-parts", "train:s_[01]"}).out,
              HasSubstr("note: 1 shard belongs to no split: 's_2.tar'\n"));
  testing::write_text(data + "/.nv-meta/split.yaml", "split_parts: {train: [s_1.tar]}\nexclude: [s_0.tar, s_1.tar/s1]");
  EXPECT_THAT(braid({"data", "prepare", data, "--force"}).out,
              AllOf(HasSubstr("train  1       1\n"), HasSubstr("note: the splits exclude 1 shard and 1 sample\n"),
                    HasSubstr("note: 1 shard belongs to no split: 's_2.tar'\n")));
}

TEST(DataPrepare, TellsHowItSplits) {
  const TemporaryFolder folder;
  const std::string data = folder.path() + "/tars";
  testing::write_shards(data, {3}, "s");
  const Finished one = braid({"data", "prepare", data, "--split", "train:0.9,val:0.1"});
  EXPECT_EQ(one.exit_code, 0);
  EXPECT_THAT(one.err,
              AllOf(HasSubstr("WARNING: the split 'val' has 0 of 1 shard"), HasSubstr("write at least 2 shards")));
  EXPECT_THAT(one.out, Not(HasSubstr("add up to")));
  EXPECT_THAT(braid({"data", "prepare", data, "--force", "--split", "train:0.9,val:0.3"}).out,
              HasSubstr("note: the ratios add up to 1.2, so the shares are 'train' 0.75, 'val' 0.25\n"));
}

}  // namespace
}  // namespace braid
