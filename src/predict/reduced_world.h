// A smaller world that runs a step like a large one: of ranks that do the same at the same time, only one. The ranks of
// a replica (tensor and context parallel) become one rank; replicas become fewer, in the same proportion in every
// module, if their microbatches have equal sizes. What a rank computes and communicates is that of the large world.
#pragma once

#include <vector>

#include "plan/topology.h"
#include "run/recipe.h"

namespace braid {

struct ReducedWorld {
  std::vector<Module> modules;  // of the large world
  Recipe recipe;                // of the small one
  Topology topology;            // likewise
  int replicas_of_each = 1;     // that a replica of the small world stands for

  // The rank of the large world for which a rank of the small one stands in a module of both.
  int full_rank(int module, int rank) const;
  int full_size() const;  // ranks of the large world
};

// `equal_replicas`: their microbatches have equal sizes. Throws a ConfigError as Topology.
ReducedWorld reduce_world(const Recipe& recipe, bool equal_replicas);

}  // namespace braid
