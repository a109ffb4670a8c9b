// Predicts the sizes of a training step. No libtorch here.
#pragma once

#include <string>
#include <vector>

#include "predict/data_stats.h"
#include "run/step_traffic.h"

namespace braid {

// The sizes of step `step` (from 0) of a run, exact for mock samples. Samples of a data set are drawn from its
// statistics or, without these, from the recipe's keys for mock samples. Their order is the one that loader.balance
// produces. Throws a ConfigError if the statistics, or the keys of mock samples, do not fit the recipe.
StepSizes draw_step(const Recipe& recipe, const Topology& topology, const DataStats* stats, std::uint64_t step);

// How unevenly the work of a module, in floating-point operations, is distributed; 1 if it is even. Modules that share
// ranks are counted together.
struct Imbalance {
  std::string module{};     // or several, joined by " + "
  double replicas = 1;      // largest / mean work of the replicas in the step
  double microbatches = 1;  // largest / mean work of all replicas in a microbatch
  double lockstep = 1;      // time / mean if all wait for the slowest replica in every microbatch
};
std::vector<Imbalance> imbalance_of(const StepSizes& sizes, const Recipe& recipe, const Topology& topology);

}  // namespace braid
