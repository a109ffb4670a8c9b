// What a run prints about itself before it starts.
#pragma once

#include <string>

#include "plan/topology.h"
#include "run/recipe.h"

namespace braid {

// A few lines: model, ranks, length, learning rate, checkpoints, and where the full recipe is.
std::string run_start_text(const Recipe& recipe, const Topology& topology, const std::string& log_dir);

// Writes the full recipe as recipe.yaml to this folder, which is created. ConfigError if it cannot be written.
void write_recipe(const Recipe& recipe, const std::string& log_dir);

}  // namespace braid
