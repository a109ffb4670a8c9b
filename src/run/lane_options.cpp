#include "run/lane_options.h"

#include "data/vision_input_of.h"

namespace braid {

LaneSetOptions lane_options(const Recipe& recipe, const Topology& topology, DataUse use) {
  const bool trains = use == DataUse::Training;
  const Provider& provider = recipe.model.model;
  return {.data = recipe.data.set,
          .loader = recipe.loader,
          .split = trains ? recipe.data.set.split : recipe.data.set.valid_split,
          .is_training = trains,
          .lanes = recipe.loader.lanes.value_or(topology.language().dense.size_of("dp")),
          .sequence_length = recipe.data.sequence_length.value_or(provider.sequence_length),
          .seed = recipe.train.seed,
          .vision = vision_input_of(provider, topology)};
}

}  // namespace braid
