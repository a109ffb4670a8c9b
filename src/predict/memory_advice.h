// Finds changes of a recipe that would lower its memory, by predicting each changed recipe. No libtorch here.
#pragma once

#include <functional>
#include <string>
#include <vector>

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

}  // namespace braid
