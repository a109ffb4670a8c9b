// Checks before the start whether the ranks of a recipe fit the memory of their GPUs or of their host, and changes of
// the recipe that would lower it. No libtorch here.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "predict/memory.h"

namespace braid {

struct MemoryAdvice {
  std::string change{};    // in words: "recompute: experts"
  std::int64_t saves = 0;  // bytes saved on the fullest rank
};

// Returns the sizes of a recipe's steps.
using StepsOf = std::function<std::vector<StepSizes>(const Recipe&, const Topology&)>;

// Changes that lead to a valid recipe on as many ranks; those that save most are first. `before` is the prediction for
// the unchanged recipe and its steps.
std::vector<MemoryAdvice> memory_advice(const Recipe& recipe, const MemoryPrediction& before, const StepsOf& steps_of,
                                        const MemoryQuestion& question = {});

// Steps whose memory the run certainly needs. Mock samples give the first steps exactly. Of a data set, only the length
// of packed sequences is known before reading, so its steps consist of short samples without labels and media.
std::vector<StepSizes> certain_steps(const Recipe& recipe, const Topology& topology);

// The least bytes that each of these ranks needs in certain_steps().
std::vector<std::int64_t> needed_bytes(const Recipe& recipe, const Topology& topology,
                                       const std::vector<int>& global_ranks, const MemoryQuestion& question);

// Reports a rank, or ranks that share a GPU, whose certain_steps() need more memory than a GPU has; the fix names the
// most effective change. `sharing` lists sets of global ranks that share a GPU.
std::vector<Problem> gpu_memory_problems(const Recipe& recipe, const Topology& topology, std::int64_t gpu_bytes,
                                         const std::vector<std::vector<int>>& sharing = {});

}  // namespace braid
