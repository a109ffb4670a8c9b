// The inputs that the fuzzers have found so far, run as an ordinary test.
#include "fuzz/corpus.h"
#include "fuzz/targets.h"

namespace braid {
namespace {

TEST(FuzzCorpus, PicklesAreReadOrRefused) {
  const auto [accepted, count] = testing::run_corpus(BRAID_SOURCE_DIR, "pickle", testing::fuzz_pickle);
  EXPECT_GE(accepted, 6);  // Python's pickles of every protocol
  EXPECT_GT(count, accepted);
}

TEST(FuzzCorpus, IndicesAreReadOrRefused) {
  const auto [accepted, count] = testing::run_corpus(BRAID_SOURCE_DIR, "metadata", testing::fuzz_metadata);
  EXPECT_GE(accepted, 6);  // those of torch and Megatron, and the same as written by Braid
  EXPECT_GT(count, accepted);
}

TEST(FuzzCorpus, ChecksumsAreReadOrRefused) {
  const auto [accepted, count] = testing::run_corpus(BRAID_SOURCE_DIR, "checksums", testing::fuzz_checksums);
  EXPECT_GE(accepted, 2);
  EXPECT_GT(count, accepted);
}

}  // namespace
}  // namespace braid
