#include "run/data_source.h"

#include <algorithm>
#include <cmath>

#include "comm/world.h"
#include "data/batches/batch.h"
#include "data/batches/mock_data.h"
#include "train/all_ranks.h"

namespace braid {
namespace {

// Far from the seeds that people choose, so that mock samples of evaluation and training differ.
constexpr std::int64_t kEvaluationSeed = 0x5eed0000;

// Evaluation identifies samples by their position, so it never moves them.
std::shared_ptr<const SampleBalance> balance_for(const Recipe& recipe, const Topology& topology, DataUse use) {
  return use == DataUse::Training ? sample_balance(recipe, topology) : nullptr;
}

// Collective: the samples of all ranks, each once.
std::vector<SampleId> of_all_ranks(const std::set<SampleId>& mine, World& world) {
  std::vector<double> counts(static_cast<std::size_t>(world.size()));
  counts[static_cast<std::size_t>(world.rank())] = static_cast<double>(mine.size());
  counts = reduced(counts, Reduce::Sum, world);
  std::vector<SampleId> all;
  for (int rank = 0; rank < world.size(); ++rank) {  // one rank per call, which bounds its memory
    std::vector<double> ids(static_cast<std::size_t>(counts[static_cast<std::size_t>(rank)]));
    if (ids.empty()) continue;
    if (rank == world.rank()) std::copy(mine.begin(), mine.end(), ids.begin());
    for (const double id : reduced(ids, Reduce::Sum, world)) all.push_back(static_cast<SampleId>(id));
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

}  // namespace

std::unique_ptr<BatchSource> make_batch_source(const Recipe& recipe, const Topology& topology, std::int64_t seed,
                                               DataUse use, std::shared_ptr<BadSamples> bad) {
  if (is_mock(recipe.data))
    return make_mock_batches(recipe.data, recipe.model.model, topology,
                             static_cast<std::uint64_t>(use == DataUse::Training ? seed : seed + kEvaluationSeed),
                             balance_for(recipe, topology, use));
  LaneSetOptions options = lane_set_options(recipe, topology, seed, use);
  options.bad = std::move(bad);
  return make_lane_batches(std::move(options), balance_for(recipe, topology, use));
}

std::set<SampleId> damaged_on_all_ranks(const BadSamples& own, World& world) {
  const std::vector<SampleId> all = of_all_ranks(own.damaged(), world);
  return {all.begin(), all.end()};
}

UnusableSamples unusable_samples(const BadSamples& own, const Topology& topology, World& world) {
  const bool counts = topology.language().dense.contains(world.rank());
  const auto total = [&](Unfit kind) {
    const std::set<SampleId> mine = counts ? own.ids(kind) : std::set<SampleId>();
    const double beyond = counts ? static_cast<double>(own.count(kind) - std::ssize(mine)) : 0;  // without an id
    return std::ssize(of_all_ranks(mine, world)) + std::llround(reduced({beyond}, Reduce::Sum, world)[0]);
  };
  UnusableSamples samples = {.damaged = std::ssize(damaged_on_all_ranks(own, world))};
  samples.too_long = total(Unfit::TooLong);
  samples.without_targets = total(Unfit::WithoutTargets);
  samples.cut = total(Unfit::Cut);
  return samples;
}

}  // namespace braid
