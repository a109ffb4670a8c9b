// How a run reads its data set. No libtorch here.
#pragma once

#include <cstdint>

#include "run/recipe.h"
#include "samples/lane_set.h"

namespace braid {

enum class DataUse { Training, Evaluation };

// Of a recipe with a data set; `say` is left to the caller.
LaneSetOptions lane_set_options(const Recipe& recipe, const Topology& topology, std::int64_t seed, DataUse use);

}  // namespace braid
