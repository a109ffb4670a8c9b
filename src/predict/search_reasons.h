// Why one layout of a recipe is faster or slower than another, from where their simulated steps spend their time.
#pragma once

#include <string>

#include "predict/simulate.h"

namespace braid {

struct SimulatedRecipe {
  const Recipe& recipe;
  const Simulation& simulation;
};

// "-0.62 s waiting (images on 32 GPUs instead of 8); -0.21 s compute (no recompute instead of full)": where a rank of
// the language model spends less or more time, the largest differences first, with the settings that it depends on.
std::string compare_layouts(const SimulatedRecipe& given, const SimulatedRecipe& other, int ranks_per_node);

}  // namespace braid
