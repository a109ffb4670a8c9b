// Verifies that a checkpoint is unchanged: reads all of it without loading it, and names every defect rather than only
// the first.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"

namespace braid {

using ByteProgress = std::function<void(std::int64_t done, std::int64_t total)>;

struct VerifyOptions {
  int threads = 4;          // that read files concurrently
  ByteProgress progress{};  // called regularly by the caller's own thread
};

struct VerifyReport {
  std::vector<Problem> problems{};  // `where` is the file's name in the folder
  int files = 0;
  std::int64_t bytes = 0;
  std::size_t tensors = 0, objects = 0;
  bool has_checksums = false;  // false: archives and index were checked, but the numbers in them could not be
};

// Checks that every file exists with its size and checksums, that every archive in it is valid and has the dtype and
// shape that the index says, and that every element of every tensor is in exactly one chunk. Without checksums, only
// what can be checked without them.
VerifyReport verify_checkpoint(const std::string& folder, const VerifyOptions& options = {});

}  // namespace braid
