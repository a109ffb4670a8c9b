// Predicts how long a rank computes and communicates, and how much of its communication is hidden.
//
// The time of a collective depends on its bytes, its algorithm and the placement of its ranks on nodes. The algorithms
// are assumed to be NCCL's: rings, or trees where a ring's many steps would take longer, which use the links of all
// GPUs of a group; an all-to-all consists of sends and receives that all run at once. No libtorch here.
#pragma once

#include "log/iteration_log.h"
#include "paper/stage.h"
#include "paper/work.h"
#include "plan/topology.h"
#include "predict/hardware.h"

namespace braid {

// Where the ranks of a group are.
struct GroupPlacement {
  int ranks = 1;
  int nodes = 1;
  int per_node = 1;  // ranks on the node with the fewest; its links limit a ring
};

// The group with this key ("tp", "dp-cp") of a rank, if nodes have `ranks_per_node` consecutive ranks.
GroupPlacement place_group(const Module& module, const std::string& key, int global_rank, int ranks_per_node);
// Among the groups of all replicas, the one on the most nodes, because the others eventually wait for it.
GroupPlacement place_worst_group(const Module& module, const std::string& key, int global_rank, int ranks_per_node);
GroupPlacement place_world(int world_size, int ranks_per_node);
GroupPlacement place_pair(int global_rank, int other, int ranks_per_node);

// `operation` is one of comm/collectives.h ("all_gather") or "exchange", a transfer from one rank to another; `bytes`
// is defined as in Collective::bytes. A group of one rank or an empty message takes no time.
double seconds_of(const std::string& operation, double bytes, const GroupPlacement& group,
                  const HardwareProfile& hardware);
// The time of all its operations, one after the other.
double seconds_of(const Collective& collective, const GroupPlacement& group, const HardwareProfile& hardware);

double seconds_of(const Work& work, const HardwareProfile& hardware);
// The calls run one after the other, in a later microbatch of a step unless in_microbatch() has selected the first. The
// host runs ahead of a GPU and counts only where it is slower; on a CPU, both times add up.
double seconds_of(const Works& works, const HardwareProfile& hardware);

struct OpTime {
  double compute = 0;
  std::array<double, kCommKinds> exposed{};  // by CommKind: communication during which nothing is computed

  double& operator[](CommKind kind) { return exposed[static_cast<std::size_t>(kind)]; }
  double communication() const { return std::accumulate(exposed.begin(), exposed.end(), 0.0); }
  double seconds() const { return compute + communication(); }
  void add(const OpTime& other, double weight = 1);
};

// How long the collectives of one rank of a module take. Placements are cached.
class GroupTimes {
 public:
  GroupTimes(const Module& module, int global_rank, const HardwareProfile& hardware)
      : module_(module), rank_(global_rank), hardware_(hardware) {}
  double seconds(const Collective& collective);
  OpTime seconds(const Collectives& collectives);  // which nothing hides

 private:
  const Module& module_;
  const int rank_;
  const HardwareProfile& hardware_;
  std::map<std::string, GroupPlacement> placements_;
};

// Whether rows are sent to their experts while the shared expert is computed.
enum class RowsTravel { Alone, BesideSharedExpert };

// The time of a forward or backward of one layer. As long as there are products to overlap with, these are hidden: a
// collective that runs beside a product; (n - 1) / n of one in n pieces; rows sent to experts beside the shared expert.
OpTime layer_time(const Works& works, const Collectives& collectives, RowsTravel travel, GroupTimes& groups,
                  const HardwareProfile& hardware);

struct ForwardBackward {
  OpTime forward, backward;
};
// The times of a layer in the first microbatch of a step or in a later one.
ForwardBackward layer_times(const PaperLayer& layer, const LayerOptions& options, bool is_first, GroupTimes& groups,
                            const HardwareProfile& hardware);

}  // namespace braid
