// How a recipe's data set is read.
#pragma once

#include "plan/topology.h"
#include "run/recipe.h"
#include "samples/lane_set.h"

namespace braid {

enum class DataUse { Training, Evaluation };

LaneSetOptions lane_options(const Recipe& recipe, const Topology& topology, DataUse use);

}  // namespace braid
