// Compares the tensors that a model needs with those that a checkpoint has. No libtorch here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/dist_checkpoint.h"
#include "run/resume/stored_sets.h"

namespace braid {

struct WantedTensor {
  std::string key;
  std::vector<std::int64_t> shape;
};

std::vector<WantedTensor> wanted_of(const std::vector<StoredSet>& sets);

// One DataError that lists every tensor that is missing or has another shape. All ranks throw the same one.
void check_wanted(const std::vector<WantedTensor>& wanted, const DistCheckpoint& checkpoint, const std::string& fix);

}  // namespace braid
