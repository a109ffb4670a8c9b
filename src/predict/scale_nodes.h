// Scales a recipe to another number of nodes.
#pragma once

#include <optional>
#include <string>

#include "run/recipe.h"

namespace braid {

struct HardwareProfile;

struct NodeCounts {
  int nodes = 1;
  std::optional<int> encoder_nodes{};
};

// Throws a ConfigError for impossible numbers: a CPU's profile describes one host, and a world has at most
// kMaxWorldSize ranks.
void check_nodes(const NodeCounts& counts, const HardwareProfile& hardware);

struct ScaledRecipe {
  Recipe recipe;
  std::string how{};  // "language.dp 32 -> 64, global_batch 192 -> 384"
};

// Changes the data parallelism of the language model and, in proportion, the global batch, so that a replica still runs
// as many microbatches. Encoders on ranks of their own get `encoder_nodes` of the nodes and change their data
// parallelism in proportion; by default they keep their ranks. Colocated encoders change like the language model.
// Throws a ConfigError if no whole number of replicas fills the nodes, or if the scaled recipe breaks a rule; it names
// nearby numbers of nodes that fit.
ScaledRecipe scale_to_nodes(const Recipe& recipe, const NodeCounts& counts, const HardwareProfile& hardware);

}  // namespace braid
