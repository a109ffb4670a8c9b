// What a model needs of a checkpoint, compared with what is there. No libtorch here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/dist_checkpoint.h"
#include "resume/stored_sets.h"

namespace braid {

struct WantedTensor {
  std::string key;
  std::vector<std::int64_t> shape;
};

std::vector<WantedTensor> wanted_of(const std::vector<StoredSet>& sets);

// Everything that is missing or of another shape, in one DataError. All ranks come to the same one.
void check_wanted(const std::vector<WantedTensor>& wanted, const DistCheckpoint& checkpoint, const std::string& fix);

}  // namespace braid
