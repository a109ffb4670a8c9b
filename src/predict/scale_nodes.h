// The same run on another number of nodes.
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

// ConfigError if there cannot be so many nodes: the profile of a CPU describes one host, and a world has at most
// kMaxWorldSize ranks.
void check_nodes(const NodeCounts& counts, const HardwareProfile& hardware);

struct ScaledRecipe {
  Recipe recipe;
  std::string how{};  // "language.dp 32 -> 64, global_batch 192 -> 384"
};

// Changes the data parallelism of the language model; with it the global batch, so that a replica still runs as many
// microbatches. `encoder_nodes` of the nodes are for encoders on ranks of their own, whose data parallelism changes in
// proportion; default: their ranks stay as they are. Colocated encoders change like the language model. ConfigError if
// no whole number of replicas fills the nodes, or if the scaled recipe breaks a rule; it names numbers of nodes near
// the given ones that fit.
ScaledRecipe scale_to_nodes(const Recipe& recipe, const NodeCounts& counts, const HardwareProfile& hardware);

}  // namespace braid
