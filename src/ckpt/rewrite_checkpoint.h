// Rewrites a checkpoint into other files and under other keys, with at most one chunk in memory at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "ckpt/dist_checkpoint.h"
#include "ckpt/verify.h"

namespace braid {

struct RewriteOptions {
  int files = 1;  // .distcp files, of about the same size
  std::int64_t chunk_bytes = std::int64_t{1} << 30;
  // The new key of a tensor or an object; nothing: it is omitted. Different keys must stay different.
  std::function<std::optional<std::string>(const std::string& key)> rename{};
  ByteProgress progress{};
};

struct Rewritten {
  std::size_t tensors = 0, objects = 0;
  std::int64_t bytes = 0;  // of all files
};

// Writes into `root` as iteration `iteration`, which becomes its latest. Objects and common.pt are copied byte by byte.
// ConfigError when the root already has that iteration.
Rewritten rewrite_checkpoint(DistCheckpoint& from, const std::string& root, std::int64_t iteration,
                             const RewriteOptions& options = {});

// ConfigError when something would be overwritten.
void check_new_iteration(const std::string& root, std::int64_t iteration);

}  // namespace braid
