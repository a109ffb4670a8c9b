// Explains why one layout of a recipe is faster or slower than another by comparing the parts of their simulated steps.
#pragma once

#include <string>

#include "predict/simulate.h"

namespace braid {

struct SimulatedRecipe {
  const Recipe& recipe;
  const Simulation& simulation;
};

// "-0.790 s against the recipe as given: -0.620 s waiting (images on 32 ranks instead of 8 ranks); -0.210 s compute
// (recompute none instead of full); +0.040 s the rest": the differences in the time of the average rank of the language
// model, the largest first, with the settings that they depend on. They add up to the first number, the difference of
// the iteration times rounded to milliseconds.
std::string compare_layouts(const SimulatedRecipe& given, const SimulatedRecipe& other, const std::string& given_name,
                            int ranks_per_node);

}  // namespace braid
