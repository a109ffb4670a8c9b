// Whether a checkpoint is what was written: all of it is read, nothing of it is loaded, and everything that is wrong is
// named rather than only the first.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"

namespace braid {

using ByteProgress = std::function<void(std::int64_t done, std::int64_t total)>;

struct VerifyOptions {
  int threads = 4;          // that read files at the same time
  ByteProgress progress{};  // called now and then by the caller's own thread
};

struct VerifyReport {
  std::vector<Problem> problems{};  // `where` is the file's name in the folder
  int files = 0;
  std::int64_t bytes = 0;
  std::size_t tensors = 0, objects = 0;
  bool has_checksums = false;  // false: archives and index were compared, the numbers in them are anybody's guess
};

// Every file is there with its size and checksums, every archive in it is whole and of the dtype and shape that the
// index says, and every element of every tensor is in exactly one chunk. Without checksums, as far as that goes.
VerifyReport verify_checkpoint(const std::string& folder, const VerifyOptions& options = {});

}  // namespace braid
