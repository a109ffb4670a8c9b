// What would lower a run's memory: changed recipes, each predicted again. No libtorch here.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "predict/memory.h"

namespace braid {

struct MemoryAdvice {
  std::string change{};    // in words: "recompute: experts"
  std::int64_t saves = 0;  // bytes of the fullest rank
};

// How large the steps of a recipe are.
using StepsOf = std::function<std::vector<StepSizes>(const Recipe&, const Topology&)>;

// The changes that save most first; only recipes that would be accepted, on as many ranks. `before`: with the steps of
// the recipe itself.
std::vector<MemoryAdvice> memory_advice(const Recipe& recipe, const MemoryPrediction& before, const StepsOf& steps_of,
                                        const MemoryQuestion& question = {});

}  // namespace braid
