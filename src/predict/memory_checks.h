// Whether the ranks of a recipe fit the memory of their GPUs or of their host, before they start. No libtorch here.
#pragma once

#include <vector>

#include "base/error.h"
#include "predict/memory.h"

namespace braid {

// Steps that the run will certainly have: of mock samples, the first ones. Of a data set only the length of packed
// sequences is known before they are read, so these consist of short samples without labels and media.
std::vector<StepSizes> certain_steps(const Recipe& recipe, const Topology& topology);

// The least that each of these ranks needs in these steps, on a GPU or on a CPU.
std::vector<std::int64_t> needed_bytes(const Recipe& recipe, const Topology& topology,
                                       const std::vector<int>& global_ranks, const MemoryQuestion& question);

// A problem if a rank, or several that share a GPU, need more in these steps than a GPU has; the fix names what would
// help most. `sharing`: sets of global ranks that share a GPU.
std::vector<Problem> gpu_memory_problems(const Recipe& recipe, const Topology& topology, std::int64_t gpu_bytes,
                                         const std::vector<std::vector<int>>& sharing = {});

}  // namespace braid
