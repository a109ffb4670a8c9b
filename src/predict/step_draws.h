// The sizes of a training step before it runs. No libtorch here.
#pragma once

#include <string>
#include <vector>

#include "predict/data_stats.h"
#include "run/step_traffic.h"

namespace braid {

// The sizes of step `step` (from 0) of a run. Mock samples have in each step exactly these sizes. Those of a data set
// are drawn from its statistics; without them, from what the recipe says of mock samples. In any case the samples are
// in the order that loader.balance gives them. ConfigError if the statistics, or the keys of mock samples, do not fit
// the recipe.
StepSizes draw_step(const Recipe& recipe, const Topology& topology, const DataStats* stats, std::uint64_t step);

// How unequal the work of a module is, in floating point operations: 1 if it is even. Modules that share ranks count
// together.
struct Imbalance {
  std::string module{};     // or several, joined by " + "
  double replicas = 1;      // largest by mean, of the replicas' work in the step
  double microbatches = 1;  // largest by mean, of the work of all replicas in a microbatch
  double lockstep = 1;      // by mean, if all replicas wait for the slowest in every microbatch
};
std::vector<Imbalance> imbalance_of(const StepSizes& sizes, const Recipe& recipe, const Topology& topology);

}  // namespace braid
