#include "run/data_source.h"

#include <algorithm>

#include "data/lane_batches.h"
#include "data/mock_batches.h"
#include "dist/world.h"
#include "train/all_ranks.h"

namespace braid {
namespace {

// Far from the seeds that people choose: mock samples of an evaluation are not those of the training.
constexpr std::int64_t kEvaluationSeed = 0x5eed0000;

// Evaluation names its samples by their places, so it never moves them.
std::shared_ptr<const SampleBalance> balance_for(const Recipe& recipe, const Topology& topology, DataUse use) {
  return use == DataUse::Training ? sample_balance(recipe, topology) : nullptr;
}

}  // namespace

std::unique_ptr<BatchSource> make_batch_source(const Recipe& recipe, const Topology& topology, std::int64_t seed,
                                               DataUse use, std::shared_ptr<BadSamples> bad) {
  if (is_mock(recipe.data))
    return std::make_unique<MockBatches>(
        recipe.data, recipe.model.model, topology,
        static_cast<std::uint64_t>(use == DataUse::Training ? seed : seed + kEvaluationSeed),
        balance_for(recipe, topology, use));
  LaneSetOptions options = lane_set_options(recipe, topology, seed, use);
  options.bad = std::move(bad);
  return std::make_unique<LaneBatches>(std::move(options), balance_for(recipe, topology, use));
}

std::set<SampleId> damaged_on_all_ranks(const BadSamples& own, World& world) {
  const std::set<SampleId> mine = own.damaged();
  std::vector<double> counts(static_cast<std::size_t>(world.size()));
  counts[static_cast<std::size_t>(world.rank())] = static_cast<double>(mine.size());
  counts = reduced(counts, Reduce::Sum, world);
  std::set<SampleId> all;
  for (int rank = 0; rank < world.size(); ++rank) {  // one rank per call, which bounds its memory
    std::vector<double> ids(static_cast<std::size_t>(counts[static_cast<std::size_t>(rank)]));
    if (ids.empty()) continue;
    if (rank == world.rank()) std::copy(mine.begin(), mine.end(), ids.begin());
    for (const double id : reduced(ids, Reduce::Sum, world)) all.insert(static_cast<SampleId>(id));
  }
  return all;
}

}  // namespace braid
