// How two checkpoints differ, and what one tensor of a checkpoint is like: in numbers, with bounded memory however
// large the tensors are and however either checkpoint is cut into chunks.
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
  const DistTensor *first = nullptr, *second = nullptr;  // null: it is only in the other one
  std::int64_t different = 0;                            // elements, bit by bit, or by value where dtypes differ
  double largest = 0;                                    // |a - b|; NaN where something is not a number
  double l2 = 0, relative = 0;                           // of a - b; and against a

  bool comparable() const { return first && second && first->shape == second->shape; }
  bool equal() const { return comparable() && first->dtype == second->dtype && different == 0; }
};

struct ObjectDifference {
  std::string key{};
  bool in_first = true, in_second = true;  // in both: other content
};

struct Comparison {
  std::vector<TensorDifference> tensors{};  // all, the largest difference first; what cannot be compared at the end
  std::vector<ObjectDifference> objects{};  // that differ
  bool equal() const;
};

// The metadata of both outlive the result. common.pt is not compared: it differs with every iteration.
Comparison compare_checkpoints(DistCheckpoint& first, DistCheckpoint& second, const ByteProgress& progress = {});

struct TensorStatistics {
  double least = 0, largest = 0, mean = 0, l2 = 0;  // of the finite ones
  std::int64_t nans = 0, infinities = 0;
  std::vector<double> first{};  // values
};
TensorStatistics statistics_of(DistCheckpoint& checkpoint, const std::string& key, std::int64_t first_values);

}  // namespace braid
