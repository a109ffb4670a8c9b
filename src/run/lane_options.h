// How a run reads its data set. No libtorch here.
#pragma once

#include <cstdint>
#include <memory>

#include "data/samples/lane_set.h"
#include "run/recipe.h"

namespace braid {

class SampleBalance;

enum class DataUse { Training, Evaluation };

int balanced_replicas(const Recipe& recipe, const Topology& topology);  // that exchange samples; 1: none
// How training orders the samples of a step; none: as they come.
std::shared_ptr<const SampleBalance> sample_balance(const Recipe& recipe, const Topology& topology);

// Of a recipe with a data set; `say` is left to the caller.
LaneSetOptions lane_set_options(const Recipe& recipe, const Topology& topology, std::int64_t seed, DataUse use);

}  // namespace braid
