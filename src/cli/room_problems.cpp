#include "cli/room_problems.h"

#include <iterator>

#include "predict/memory_checks.h"

namespace braid {
namespace {

bool are_known(const RanksHere& here, const Topology& topology) {
  return here.first >= 0 && here.first + here.count <= topology.world_size();  // else, another rank placement
}

// As comm/run_as_rank.cpp assigns them.
std::vector<std::vector<int>> ranks_by_gpu(const RanksHere& here, int gpus) {
  std::vector<std::vector<int>> ranks(static_cast<std::size_t>(gpus));
  for (int local = 0; local < here.count; ++local)
    ranks[static_cast<std::size_t>(local % gpus)].push_back(here.first + local);
  return ranks;
}

}  // namespace

std::vector<Problem> room_problems(const Recipe& recipe, const Topology& topology, const RanksHere& here,
                                   const HostRoom& room) {
  std::vector<Problem> problems = oversubscription_problems(here.count, room.host);
  const auto append = [&](std::vector<Problem> more) {
    std::move(more.begin(), more.end(), std::back_inserter(problems));
  };
  if (room.gpus > 0) {
    const bool share = here.count > room.gpus && room.sees_all_gpus && are_known(here, topology);
    append(gpu_memory_problems(recipe, topology, room.gpu_bytes,
                               share ? ranks_by_gpu(here, room.gpus) : std::vector<std::vector<int>>()));
  } else if (are_known(here, topology)) {
    append(memory_problems(needed_bytes(recipe, topology, ranks_by_gpu(here, 1)[0], {.on_gpu = false}), room.host));
  }
  return problems;
}

}  // namespace braid
