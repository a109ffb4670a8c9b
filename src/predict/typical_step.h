// Steps of identical samples, which allow a quick comparison of layouts because all replicas and microbatches are
// equal.
#pragma once

#include <vector>

#include "predict/simulate.h"

namespace braid {

struct TypicalSample {
  std::int64_t tokens = 0, labels = 0, sequences = 1;
  double squares = 0;                       // see StepSizes::Text
  std::vector<StepSizes::Extents> media{};  // by module of the recipe
  std::vector<std::int64_t> value_bytes{};  // by module, as in StepSizes
};

// The recipe with one rank per module and one sample per step.
Recipe smallest(Recipe recipe);

// The samples of full_step().
TypicalSample full_sample(const Recipe& recipe);

// A sample with the mean text and the mean size and number of media of drawn steps; full_sample() if steps are not
// drawn.
TypicalSample typical_sample(const Recipe& recipe, const SimulateOptions& options);

StepSizes equal_step(const TypicalSample& sample, const Recipe& recipe, const Topology& topology);

}  // namespace braid
