// Whole checkpoints: verifying that one is unchanged, comparing two, rewriting one.
#pragma once

#include "base/error.h"
#include "ckpt/dist_checkpoint.h"

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

// --- comparing two checkpoints, and summarising a tensor, with bounded memory

struct TensorDifference {
  std::string key{};
  const DistTensor *first = nullptr, *second = nullptr;  // null: only in the other checkpoint
  std::int64_t different = 0;   // elements: compared bit by bit, or by value if the dtypes differ
  double largest = 0;           // |a - b|; NaN if any element is NaN
  double l2 = 0, relative = 0;  // of a - b; and relative to a

  bool comparable() const { return first && second && first->shape == second->shape; }
  bool equal() const { return comparable() && first->dtype == second->dtype && different == 0; }
};

struct ObjectDifference {
  std::string key{};
  bool in_first = true, in_second = true;  // if in both, the content differs
};

struct Comparison {
  std::vector<TensorDifference> tensors{};  // all, the largest difference first; tensors that cannot be compared last
  std::vector<ObjectDifference> objects{};  // only those that differ
  bool equal() const { return objects.empty() && std::ranges::all_of(tensors, &TensorDifference::equal); }
};

// The metadata of both must outlive the result. common.pt is not compared: it differs with every iteration.
Comparison compare_checkpoints(DistCheckpoint& first, DistCheckpoint& second, const ByteProgress& progress = {});

struct TensorStatistics {
  double least = 0, largest = 0, mean = 0, l2 = 0;  // of the finite ones
  std::int64_t nans = 0, infinities = 0;
  std::vector<double> first{};  // values
};
TensorStatistics statistics_of(DistCheckpoint& checkpoint, const std::string& key, std::int64_t first_values);

// --- rewriting a checkpoint into other files and under other keys, with one chunk in memory at a time

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

// Writes a new iteration of `root`, which becomes its latest. Objects and common.pt are copied byte by byte.
Rewritten rewrite_checkpoint(DistCheckpoint& from, const std::string& root, std::int64_t iteration,
                             const RewriteOptions& options = {});

// ConfigError when something would be overwritten.
void check_new_iteration(const std::string& root, std::int64_t iteration);

}  // namespace braid
