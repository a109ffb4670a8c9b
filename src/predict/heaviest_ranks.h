// Finds the ranks of each stage that have the heaviest microbatches of a step. No libtorch here.
#pragma once

#include <vector>

#include "plan/pipeline.h"
#include "run/step_sizes.h"

namespace braid {

struct HeaviestRanks {
  Stage stage;
  std::vector<int> ranks;
};

// For each stage of all modules at most `most` of its ranks, no two with equal microbatches. Ranks are ordered by the
// tokens and labels, or the patches or frames, of their heaviest microbatch, heaviest first.
std::vector<HeaviestRanks> heaviest_ranks(const Topology& topology, const StepSizes& sizes, std::size_t most);

}  // namespace braid
