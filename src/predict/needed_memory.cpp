#include "predict/needed_memory.h"

#include <algorithm>
#include <numeric>

namespace braid {
namespace {

template <class BytesOf>
std::int64_t of_device(const MemoryPrediction& prediction, const Topology& topology, const MemoryQuestion& question,
                       BytesOf bytes_of) {
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(topology.world_size()));
  for (const StageRankMemory& stage : prediction.stages) {
    const RankBlock block = ranks_of(topology, stage.stage);
    for (int rank = block.first; rank < block.first + block.size; ++rank) {
      std::int64_t& of_rank = bytes[static_cast<std::size_t>(rank)];
      of_rank = std::max(of_rank, (stage.rank.*bytes_of)());
    }
  }
  if (question.on_gpu) return *std::max_element(bytes.begin(), bytes.end());
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

}  // namespace

MemoryQuestion memory_question(const HardwareProfile& hardware) { return {.on_gpu = !is_host(hardware)}; }

DeviceMemory device_memory(const MemoryPrediction& prediction, const Topology& topology,
                           const HardwareProfile& hardware) {
  const MemoryQuestion question = memory_question(hardware);
  return {.needed = needed_of_device(prediction, topology, question),
          .with_slack = held_on_device(prediction, topology, question),
          .capacity = static_cast<std::int64_t>(1e9 * hardware.memory_gb)};
}

std::int64_t needed_of_device(const MemoryPrediction& prediction, const Topology& topology,
                              const MemoryQuestion& question) {
  return of_device(prediction, topology, question, &RankMemory::needed);
}

std::int64_t held_on_device(const MemoryPrediction& prediction, const Topology& topology,
                            const MemoryQuestion& question) {
  return of_device(prediction, topology, question, &RankMemory::device);
}

}  // namespace braid
