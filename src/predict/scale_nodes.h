// The same run on another number of nodes.
#pragma once

#include <string>

#include "run/recipe.h"

namespace braid {

struct ScaledRecipe {
  Recipe recipe;
  std::string how{};  // "language.dp 32 -> 64, global_batch 192 -> 384"
};

// Changes the data parallelism of the language model; with it the global batch, so that a replica still runs as many
// microbatches. Encoders stay as they are; colocated ones get the same factor. ConfigError if no whole number of
// replicas fills the nodes.
ScaledRecipe scale_to_nodes(const Recipe& recipe, int nodes, int ranks_per_node);

}  // namespace braid
