// A smaller world whose step takes as long as that of a large one: one rank stands for all that do the same at the same
// time. The ranks of a replica (tensor and context parallel) become one rank; if microbatches have equal sizes, the
// number of replicas shrinks by the same factor in every module. Computation and communication of a rank are those of
// the large world.
#pragma once

#include <vector>

#include "plan/topology.h"
#include "run/recipe.h"

namespace braid {

struct ReducedWorld {
  std::vector<Module> modules;  // of the large world
  Recipe recipe;                // of the small world
  Topology topology;            // of the small world
  int replicas_of_each = 1;     // replicas for which one of the small world stands

  // The rank of the large world for which a rank of the small one stands in a module of both.
  int full_rank(int module, int rank) const;
  int full_size() const;  // ranks of the large world
};

// `equal_replicas`: all replicas' microbatches have equal sizes. Throws the same ConfigErrors as Topology.
ReducedWorld reduce_world(const Recipe& recipe, bool equal_replicas);

}  // namespace braid
