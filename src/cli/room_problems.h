// Whether the ranks of a run have room on their host: cores, memory, and memory of GPUs. No libtorch here.
#pragma once

#include <vector>

#include "cluster/local/host_capacity.h"
#include "run/recipe.h"

namespace braid {

// The ranks that run on this host.
struct RanksHere {
  int first = 0, count = 1;
};

struct HostRoom {
  HostCapacity host{};
  int gpus = 0;                // that ranks use; 0: they compute on the CPU
  std::int64_t gpu_bytes = 0;  // of the smallest; 0: unknown
  bool sees_all_gpus = true;   // false: each rank may have GPUs that others do not see
};

std::vector<Problem> room_problems(const Recipe& recipe, const Topology& topology, const RanksHere& here,
                                   const HostRoom& room);

}  // namespace braid
