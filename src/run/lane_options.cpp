// The part of data_source.h that needs no libtorch.
#include "data/batches/sample_sizes.h"
#include "run/data_source.h"

namespace braid {

int balanced_replicas(const Recipe& recipe, const Topology& topology) {
  if (recipe.loader.balance == "none") return 1;
  return recipe.loader.balance_replicas.value_or(default_balanced_replicas(topology));
}

std::shared_ptr<const SampleBalance> sample_balance(const Recipe& recipe, const Topology& topology) {
  if (recipe.loader.balance == "none") return nullptr;
  return std::make_shared<SampleBalance>(recipe.model.model, topology, frozen_sets(recipe),
                                         balanced_replicas(recipe, topology));
}

LaneSetOptions lane_set_options(const Recipe& recipe, const Topology& topology, std::int64_t seed, DataUse use) {
  const Provider& provider = recipe.model.model;
  const DataConfig& data = recipe.data.set;
  const bool trains = use == DataUse::Training;
  return {.data = data,
          .loader = recipe.loader,
          .split = trains ? data.split : data.valid_split,
          .is_training = trains,
          .lanes = recipe.loader.lanes.value_or(topology.language().dense.size_of("dp")),
          .sequence_length = recipe.data.sequence_length.value_or(provider.sequence_length),
          .seed = seed,
          .media = media_tokens(provider, topology),
          .vision = vision_input(provider, topology)};
}

}  // namespace braid
