// Compares two checkpoints, and summarises one tensor of a checkpoint: in numbers, with bounded memory for tensors of
// any size and any chunks.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/dist_checkpoint.h"
#include "ckpt/verify.h"

namespace braid {

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
  bool equal() const;
};

// The metadata of both must outlive the result. common.pt is not compared: it differs with every iteration.
Comparison compare_checkpoints(DistCheckpoint& first, DistCheckpoint& second, const ByteProgress& progress = {});

struct TensorStatistics {
  double least = 0, largest = 0, mean = 0, l2 = 0;  // of the finite ones
  std::int64_t nans = 0, infinities = 0;
  std::vector<double> first{};  // values
};
TensorStatistics statistics_of(DistCheckpoint& checkpoint, const std::string& key, std::int64_t first_values);

}  // namespace braid
