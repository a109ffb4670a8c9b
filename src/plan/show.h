// A topology for people (tables) and for programs (JSON).
#pragma once

#include <string>

#include "plan/topology.h"

namespace braid {

// "images on 0-1 (dp 2), language on 2-5 (tp 2, dp 2)"
std::string topology_line(const Topology& topology);

// Modules with their sizes and ranks, every rank's coordinates, all groups in creation order. Large worlds are
// abbreviated: the first and last ranks of a module, the first groups of a kind.
std::string show_topology(const Topology& topology);

// A rank beyond the world is a ConfigError.
void check_rank(const Topology& topology, int global_rank);

// One rank, which is checked: its modules, its coordinates in both views, and each of its groups with all members.
std::string show_rank(const Topology& topology, int global_rank);

// Everything, unabbreviated:
//   {"world_size", "colocated",
//    "modules": [{"name", "kind", "rank_offset", "dense": {"tp", ...}, "expert": {"expt_tp", ...},
//                 "ranks": [{"global_rank", "dense": {"tp", ...}, "expert": {"expt_tp", ...}}]}],
//    "groups": [{"module", "key", "ranks": [...]}]}
std::string topology_json(const Topology& topology);

}  // namespace braid
