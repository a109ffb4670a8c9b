#include "predict/heaviest_ranks.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace braid {
namespace {

std::size_t index(int i) { return static_cast<std::size_t>(i); }

}  // namespace

std::size_t HeaviestRanks::ModuleLoad::slice_of(int global_rank) const {
  return index((global_rank - module->dense.rank_offset()) / tp) % slices.size();
}

// cp ranks have equal shares of a replica's tokens but not of its labels, most of which are at the end of a sequence.
HeaviestRanks::ModuleLoad HeaviestRanks::language_load(const Module& module, const StepSizes& sizes) {
  const std::size_t cp = index(module.dense.size_of("cp")), replicas = index(module.dense.size_of("dp"));
  ModuleLoad load = {&module, module.dense.size_of("tp"), {}};
  for (std::size_t slice = 0; slice < replicas * cp; ++slice) {
    std::vector<std::int64_t>& by_microbatch = load.slices.emplace_back();
    for (const std::vector<StepSizes::Text>& texts : sizes.text)
      by_microbatch.push_back(texts[slice / cp].tokens + texts[slice / cp].labels[slice % cp]);
  }
  return load;
}

// All cp ranks of a replica have its media.
HeaviestRanks::ModuleLoad HeaviestRanks::encoder_load(const Module& module,
                                                      const std::vector<std::vector<StepSizes::Extents>>& media) {
  const std::size_t cp = index(module.dense.size_of("cp")), replicas = index(module.dense.size_of("dp"));
  ModuleLoad load = {&module, module.dense.size_of("tp"), {}};
  for (std::size_t slice = 0; slice < replicas * cp; ++slice) {
    std::vector<std::int64_t>& by_microbatch = load.slices.emplace_back();
    for (const std::vector<StepSizes::Extents>& samples : media) {
      const std::size_t share = samples.size() / replicas, first = slice / cp * share;
      std::int64_t& rows = by_microbatch.emplace_back(0);
      for (std::size_t s = first; s < first + share; ++s)
        for (const auto& extent : samples[s]) rows += num_elements(extent);
    }
  }
  return load;
}

HeaviestRanks::HeaviestRanks(const Topology& topology, const StepSizes& sizes) : topology_(topology) {
  for (std::size_t m = 0; m < topology.modules().size(); ++m) {
    const Module& module = topology.modules()[m];
    loads_.push_back(module.is_encoder ? encoder_load(module, sizes.media[m]) : language_load(module, sizes));
  }
}

std::vector<int> HeaviestRanks::of_stage(const Stage& stage, std::size_t most) const {
  const ModuleLoad& load = loads_[index(stage.module)];
  const RankBlock block = ranks_of(topology_, stage);
  std::vector<std::pair<std::int64_t, int>> ranks;  // each with the load of its heaviest microbatch
  for (int rank = block.first; rank < block.first + block.size; ++rank)
    if (rank == block.first || !is_same_slice(rank, rank - 1))
      ranks.emplace_back(std::ranges::max(load.slices[load.slice_of(rank)]), rank);
  std::ranges::stable_sort(ranks, std::greater(), &std::pair<std::int64_t, int>::first);
  std::vector<int> heaviest;
  for (const auto& candidate : ranks) {
    if (heaviest.size() == most) break;
    const int rank = candidate.second;
    if (std::ranges::none_of(heaviest, [&](int other) { return has_same_load(rank, other); })) heaviest.push_back(rank);
  }
  return heaviest;
}

template <class Same>
bool HeaviestRanks::all_modules(int rank, int other, Same same) const {
  return std::ranges::all_of(loads_, [&](const ModuleLoad& load) {
    return !load.module->dense.contains(rank) || same(load, load.slice_of(rank), load.slice_of(other));
  });
}

bool HeaviestRanks::is_same_slice(int rank, int other) const {
  return all_modules(rank, other, [](const ModuleLoad&, std::size_t a, std::size_t b) { return a == b; });
}

bool HeaviestRanks::has_same_load(int rank, int other) const {
  return all_modules(rank, other, [](const ModuleLoad& load, std::size_t a, std::size_t b) {
    return load.slices[a] == load.slices[b];
  });
}

}  // namespace braid
