#include "run/data_source.h"

#include "data/lane_batches.h"
#include "data/mock_batches.h"

namespace braid {
namespace {

// Far from the seeds that people choose: mock samples of an evaluation are not those of the training.
constexpr std::int64_t kEvaluationSeed = 0x5eed0000;

}  // namespace

std::unique_ptr<BatchSource> make_batch_source(const Recipe& recipe, const Topology& topology, std::int64_t seed,
                                               DataUse use, std::function<void(const std::string& text)> say) {
  if (is_mock(recipe.data))
    return std::make_unique<MockBatches>(
        recipe.data, recipe.model.model, topology,
        static_cast<std::uint64_t>(use == DataUse::Training ? seed : seed + kEvaluationSeed));
  LaneSetOptions options = lane_set_options(recipe, topology, seed, use);
  options.say = std::move(say);
  return std::make_unique<LaneBatches>(std::move(options));
}

}  // namespace braid
