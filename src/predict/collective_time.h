// Predicts communication time from the size of a message, the algorithm and the placement of ranks on nodes. It assumes
// NCCL's algorithms: rings, or trees where a ring's many steps would take longer, which use the links of all GPUs of a
// group; an all-to-all consists of sends and receives that all run at once.
#pragma once

#include <string>

#include "plan/topology.h"
#include "predict/hardware.h"

namespace braid {

// Where the ranks of a group are.
struct GroupPlacement {
  int ranks = 1;
  int nodes = 1;
  int per_node = 1;  // ranks on the node with the fewest; its links limit a ring
};

// The group of a module with this key ("tp", "dp-cp") to which a rank belongs, if every node has `ranks_per_node`
// consecutive global ranks.
GroupPlacement place_group(const Module& module, const std::string& key, int global_rank, int ranks_per_node);
// Among the groups of all replicas, the one on the most nodes, because the others eventually wait for it.
GroupPlacement place_worst_group(const Module& module, const std::string& key, int global_rank, int ranks_per_node);
GroupPlacement place_world(int world_size, int ranks_per_node);
GroupPlacement place_pair(int global_rank, int other, int ranks_per_node);

// The operations of comm/collectives.h, and a transfer from one rank to another.
enum class CollectiveKind { AllReduce, AllGather, ReduceScatter, AllToAll, Broadcast, Reduce, Exchange };
CollectiveKind collective_kind(const std::string& operation);  // "all_gather"

// `bytes` is defined as in Collective::bytes. A group of one rank or an empty message takes no time.
double seconds_of(CollectiveKind kind, double bytes, const GroupPlacement& group, const HardwareProfile& hardware);
// The time of all its operations, one after the other.
double seconds_of(const Collective& collective, const GroupPlacement& group, const HardwareProfile& hardware);

}  // namespace braid
