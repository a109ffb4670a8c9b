// The inputs that the fuzzers of shards have found so far, run as an ordinary test.
#include <gtest/gtest.h>
#include "fuzz/shard_targets.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

// How many files of a corpus were accepted, and how many there are.
template <class Target>
std::pair<int, int> run_corpus(const char* name, const Target& target) {
  int accepted = 0, count = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(BRAID_SOURCE_DIR) / "tests/fuzz/corpus" / name)) {
    SCOPED_TRACE(entry.path().filename().string());
    EXPECT_NO_THROW(accepted += target(testing::read_text(entry.path())));
    ++count;
  }
  return {accepted, count};
}

TEST(ShardFuzzCorpus, TarsAreReadOrRefused) {
  const auto [accepted, count] = run_corpus("tar", testing::fuzz_tar);
  EXPECT_GE(accepted, 3);  // ustar, GNU and PAX
  EXPECT_GT(count, accepted);
}

TEST(ShardFuzzCorpus, DataSetsAreReadOrRefused) {
  const auto [accepted, count] = run_corpus("data_set", testing::fuzz_data_set);
  EXPECT_GE(accepted, 6);
  EXPECT_GT(count, accepted);
}

}  // namespace
}  // namespace braid
