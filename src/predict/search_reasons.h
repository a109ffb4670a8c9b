// Why one layout of a recipe is faster or slower than another, from where their simulated steps spend their time.
#pragma once

#include <string>

#include "predict/simulate.h"

namespace braid {

struct SimulatedRecipe {
  const Recipe& recipe;
  const Simulation& simulation;
};

// "-0.790 s against the recipe as given: -0.620 s waiting (images on 32 ranks instead of 8 ranks); -0.210 s compute
// (recompute none instead of full); +0.040 s the rest": where the average rank of the language model spends less or
// more time, the largest differences first, with the settings that they depend on. The numbers add up to the first one,
// which is the difference of the iteration times in milliseconds.
std::string compare_layouts(const SimulatedRecipe& given, const SimulatedRecipe& other, const std::string& given_name,
                            int ranks_per_node);

}  // namespace braid
