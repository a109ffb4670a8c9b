// Predicts the sizes of a training step. No libtorch here.
#pragma once

#include <string>
#include <vector>

#include "predict/data_stats.h"
#include "run/step_sizes.h"

namespace braid {

// The sizes of step `step` (from 0) of a run, exact for mock samples. Samples of a data set are drawn from its
// statistics or, without these, from the recipe's keys for mock samples. Their order is the one that loader.balance
// produces. Throws a ConfigError if the statistics, or the keys of mock samples, do not fit the recipe.
StepSizes draw_step(const Recipe& recipe, const Topology& topology, const DataStats* stats, std::uint64_t step);

}  // namespace braid
