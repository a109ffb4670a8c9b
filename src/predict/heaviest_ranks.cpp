#include "predict/heaviest_ranks.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace braid {
namespace {

using Load = std::vector<std::int64_t>;  // by microbatch

// Each rank's share of every microbatch of a module. Ranks that differ only in tp or pp have equal shares.
struct ModuleLoad {
  const Grid& grid;
  int tp;
  std::vector<Load> slices{};  // by dp, then by cp, as ranks are ordered

  const Load& of(int global_rank) const { return slices[(global_rank - grid.rank_offset()) / tp % slices.size()]; }
};

std::int64_t elements_of(const std::vector<StepSizes::Extents>& samples, std::size_t replica, std::size_t replicas) {
  const std::size_t share = samples.size() / replicas;
  std::int64_t elements = 0;
  for (std::size_t s = replica * share; s < (replica + 1) * share; ++s)
    for (const auto& extent : samples[s]) elements += num_elements(extent);
  return elements;
}

// cp ranks have equal shares of a replica's tokens but not of its labels, most of which are at the end of a sequence;
// all of them have its media.
ModuleLoad load_of(const Topology& topology, int m, const StepSizes& sizes) {
  const Module& module = topology.module(m);
  const std::size_t cp = module.dense.size_of("cp"), replicas = module.dense.size_of("dp");
  ModuleLoad load = {module.dense, module.dense.size_of("tp")};
  for (std::size_t slice = 0; slice < replicas * cp; ++slice) {
    Load& by_microbatch = load.slices.emplace_back();
    for (std::size_t microbatch = 0; microbatch < sizes.text.size(); ++microbatch) {
      const StepSizes::Text* text = module.is_encoder ? nullptr : &sizes.text[microbatch][slice / cp];
      by_microbatch.push_back(text ? text->tokens + text->labels[slice % cp]
                                   : elements_of(sizes.media[m][microbatch], slice / cp, replicas));
    }
  }
  return load;
}

// Whether two ranks of the same modules compare equal in each of these.
template <class Same>
bool in_all_modules(const std::vector<ModuleLoad>& loads, int rank, int other, Same same) {
  return std::ranges::all_of(
      loads, [&](const ModuleLoad& load) { return !load.grid.contains(rank) || same(load.of(rank), load.of(other)); });
}

std::vector<int> heaviest_of_stage(const std::vector<ModuleLoad>& loads, int module, const RankBlock& block,
                                   std::size_t most) {
  const auto is_same_slice = [](const Load& a, const Load& b) { return &a == &b; };
  std::vector<std::pair<std::int64_t, int>> ranks;  // each with the load of its heaviest microbatch
  for (const int rank : block)
    if (rank == block.first || !in_all_modules(loads, rank, rank - 1, is_same_slice))
      ranks.emplace_back(std::ranges::max(loads[module].of(rank)), rank);
  std::ranges::stable_sort(ranks, std::greater(), &std::pair<std::int64_t, int>::first);
  std::vector<int> heaviest;
  for (const auto& [load, rank] : ranks) {
    if (heaviest.size() == most) break;
    const auto is_equal = [&, rank = rank](int other) {
      return in_all_modules(loads, rank, other, std::equal_to<Load>());
    };
    if (std::ranges::none_of(heaviest, is_equal)) heaviest.push_back(rank);
  }
  return heaviest;
}

}  // namespace

std::vector<HeaviestRanks> heaviest_ranks(const Topology& topology, const StepSizes& sizes, std::size_t most) {
  std::vector<ModuleLoad> loads;
  const int modules = static_cast<int>(topology.modules().size());
  for (int m = 0; m < modules; ++m) loads.push_back(load_of(topology, m, sizes));
  std::vector<HeaviestRanks> all;
  for (int m = 0; m < modules; ++m)
    for (int stage = 0; stage < stage_count(topology.module(m)); ++stage)
      all.push_back({{m, stage}, heaviest_of_stage(loads, m, ranks_of(topology, {m, stage}), most)});
  return all;
}

}  // namespace braid
