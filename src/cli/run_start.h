// What a run says of itself before it starts.
#pragma once

#include <string>

#include "plan/topology.h"
#include "run/recipe.h"

namespace braid {

// A few lines: model, ranks, length, learning rate, checkpoints, and where the whole recipe is.
std::string run_start_text(const Recipe& recipe, const Topology& topology, const std::string& log_dir);

// The whole recipe as recipe.yaml in this folder, which is made. ConfigError when it cannot be written.
void write_recipe(const Recipe& recipe, const std::string& log_dir);

}  // namespace braid
