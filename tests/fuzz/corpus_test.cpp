// The inputs that the fuzzers have found so far, run as an ordinary test.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "fuzz/targets.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

// How many files of a corpus were accepted, and how many there are.
template <class Target>
std::pair<int, int> run_corpus(const char* name, const Target& target) {
  int accepted = 0, count = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(BRAID_SOURCE_DIR) / "tests/fuzz/corpus" / name)) {
    SCOPED_TRACE(entry.path().filename().string());
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    EXPECT_NO_THROW(accepted += target(bytes));
    ++count;
  }
  return {accepted, count};
}

TEST(FuzzCorpus, PicklesAreReadOrRefused) {
  const auto [accepted, count] = run_corpus("pickle", testing::fuzz_pickle);
  EXPECT_GE(accepted, 6);  // Python's pickles of every protocol
  EXPECT_GT(count, accepted);
}

TEST(FuzzCorpus, IndicesAreReadOrRefused) {
  const auto [accepted, count] = run_corpus("metadata", testing::fuzz_metadata);
  EXPECT_GE(accepted, 6);  // those of torch and Megatron, and the same as written by Braid
  EXPECT_GT(count, accepted);
}

TEST(FuzzCorpus, ChecksumsAreReadOrRefused) {
  const auto [accepted, count] = run_corpus("checksums", testing::fuzz_checksums);
  EXPECT_GE(accepted, 2);
  EXPECT_GT(count, accepted);
}

}  // namespace
}  // namespace braid
