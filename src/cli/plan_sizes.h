// Which sizes the steps of a prediction have, from the options of a command of braid plan.
#pragma once

#include <optional>
#include <string>

#include "predict/simulate.h"

namespace braid {

struct PlanSizesCall {
  std::string stats_path{};    // of the data set; empty: none
  std::optional<int> steps{};  // to draw
  bool full = false;           // draw nothing
  int default_steps = 8;
};

struct PlanSizes {
  SimulateOptions options{};
  std::string words{};
};
// ConfigError if options contradict each other.
PlanSizes plan_sizes(const Recipe& recipe, const PlanSizesCall& call);

}  // namespace braid
