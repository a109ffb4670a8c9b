#include "run/data_source.h"

#include "data/lane_batches.h"
#include "data/mock_batches.h"
#include "data/vision_input.h"

namespace braid {
namespace {

// Far from the seeds that people choose: mock samples of an evaluation are not those of the training.
constexpr std::int64_t kEvaluationSeed = 0x5eed0000;

}  // namespace

std::unique_ptr<BatchSource> make_batch_source(const Recipe& recipe, const Topology& topology, std::int64_t seed,
                                               DataUse use, std::function<void(const std::string& text)> say) {
  const bool trains = use == DataUse::Training;
  const Provider& provider = recipe.model.model;
  if (is_mock(recipe.data))
    return std::make_unique<MockBatches>(recipe.data, provider, topology,
                                         static_cast<std::uint64_t>(trains ? seed : seed + kEvaluationSeed));
  return std::make_unique<LaneBatches>(
      LaneSetOptions{.data = recipe.data.set,
                     .loader = recipe.loader,
                     .split = trains ? recipe.data.set.split : recipe.data.set.valid_split,
                     .is_training = trains,
                     .lanes = recipe.loader.lanes.value_or(topology.language().dense.size_of("dp")),
                     .sequence_length = recipe.data.sequence_length.value_or(provider.sequence_length),
                     .seed = seed,
                     .vision = vision_input(provider, topology),
                     .say = std::move(say)});
}

}  // namespace braid
