#include "plan/bridge.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace braid {

Bridge::Bridge(const Topology& topology, const std::vector<Edge>& edges, std::int64_t samples)
    : topology_(topology), edges_(edges), samples_(samples) {}

SampleRange samples_of_replica(const Module& module, std::int64_t samples, int global_rank) {
  const int replicas = module.dense.size_of("dp");
  BRAID_CHECK_EQ(samples % replicas, 0, "samples of a microbatch");
  const std::int64_t each = samples / replicas, begin = module.dense.coord(global_rank, "dp") * each;
  return {begin, begin + each};
}

SampleRange Bridge::samples_of(int module, int global_rank) const {
  return samples_of_replica(topology_.module(module), samples_, global_rank);
}

SampleRange Bridge::shared_samples(int edge) const {
  const Edge& e = edges_[edge];
  const SampleRange from = samples_of(e.from.module, e.from_rank), to = samples_of(e.to.module, e.to_rank);
  return {std::max(from.begin, to.begin), std::min(from.end, to.end)};
}

EmbeddingSlice Bridge::slice(int edge, const std::vector<std::int64_t>& counts) const {
  const Edge& e = edges_[edge];
  const SampleRange shared = shared_samples(edge);
  const auto first = counts.begin() + (shared.begin - samples_of(e.from.module, e.from_rank).begin);
  const auto last = first + shared.size();
  return {{first, last},
          std::accumulate(counts.begin(), first, std::int64_t{0}),
          std::accumulate(first, last, std::int64_t{0})};
}

}  // namespace braid
