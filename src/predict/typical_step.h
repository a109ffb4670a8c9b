// Steps whose samples are all the same, so that layouts can be compared quickly: no replica and no microbatch differs
// from another.
#pragma once

#include <vector>

#include "predict/simulate.h"

namespace braid {

struct TypicalSample {
  std::int64_t tokens = 0, labels = 0, sequences = 1;
  double squares = 0;                       // as StepSizes::Text
  std::vector<StepSizes::Extents> media{};  // by module of the recipe
  std::vector<std::int64_t> value_bytes{};  // likewise
};

// The recipe on one rank for each module, with one sample per step.
Recipe smallest(Recipe recipe);

// As full_step() makes them.
TypicalSample full_sample(const Recipe& recipe);
// With the mean text and the mean size and number of media of these steps.
TypicalSample mean_sample(const Recipe& recipe, const Topology& topology, const std::vector<StepSizes>& steps);

// With the mean sizes of drawn steps; else as full_sample().
TypicalSample typical_sample(const Recipe& recipe, const SimulateOptions& options);

StepSizes equal_step(const TypicalSample& sample, const Recipe& recipe, const Topology& topology);

}  // namespace braid
