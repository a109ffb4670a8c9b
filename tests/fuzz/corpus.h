// Runs a fuzz target on the inputs that its fuzzer has found so far.
#pragma once

#include <gtest/gtest.h>

namespace braid::testing {

// How many files of a corpus were accepted, and how many there are. `root` is the repository.
template <class Target>
std::pair<int, int> run_corpus(const std::filesystem::path& root, const char* name, const Target& target) {
  int accepted = 0, count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(root / "tests/fuzz/corpus" / name)) {
    SCOPED_TRACE(entry.path().filename().string());
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    EXPECT_NO_THROW(accepted += target(bytes));
    ++count;
  }
  return {accepted, count};
}

}  // namespace braid::testing
