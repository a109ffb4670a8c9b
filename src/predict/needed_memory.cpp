#include "predict/needed_memory.h"

#include <algorithm>
#include <numeric>

namespace braid {

std::vector<std::int64_t> needed_by_rank(const MemoryPrediction& prediction, const Topology& topology) {
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(topology.world_size()));
  for (const StageRankMemory& stage : prediction.stages) {
    const RankBlock block = ranks_of(topology, stage.stage);
    for (int rank = block.first; rank < block.first + block.size; ++rank) {
      std::int64_t& of_rank = bytes[static_cast<std::size_t>(rank)];
      of_rank = std::max(of_rank, stage.rank.least_device());
    }
  }
  return bytes;
}

std::int64_t needed_of_device(const MemoryPrediction& prediction, const Topology& topology,
                              const MemoryQuestion& question) {
  const std::vector<std::int64_t> bytes = needed_by_rank(prediction, topology);
  if (question.on_gpu) return *std::max_element(bytes.begin(), bytes.end());
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

}  // namespace braid
