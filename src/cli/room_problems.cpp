#include "cli/room_problems.h"

#include <iterator>

#include "predict/memory_checks.h"

namespace braid {

std::vector<Problem> room_problems(const Recipe& recipe, const Topology& topology, const RanksHere& here,
                                   const HostRoom& room) {
  std::vector<Problem> problems = oversubscription_problems(here.count, room.host);
  const auto append = [&](std::vector<Problem> more) {
    std::move(more.begin(), more.end(), std::back_inserter(problems));
  };
  if (room.gpus > 0) {
    append(gpu_memory_problems(recipe, topology, room.gpu_bytes, (here.count + room.gpus - 1) / room.gpus));
    return problems;
  }
  if (here.first < 0 || here.first + here.count > topology.world_size()) return problems;  // another rank placement
  const std::vector<std::int64_t> bytes = needed_bytes(recipe, topology, {.on_gpu = false});
  append(memory_problems({bytes.begin() + here.first, bytes.begin() + here.first + here.count}, room.host));
  return problems;
}

}  // namespace braid
