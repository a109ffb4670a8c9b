#include "models/projector.h"

#include <ATen/TensorOperators.h>

#include "base/error.h"
#include "ops/activation.h"

namespace braid {

Projector::Projector(const ProjectorConfig& config, const Parameters& parameters, const Parallel& parallel)
    : parameters_(parameters),
      parallel_(parallel),
      first_(parameters, config.kind == "affine" ? "encoder." : "encoder.linear_fc1.", Split::Columns, parallel) {
  BRAID_CHECK(!parallel.sequence_parallel, "every tp rank of the projector has all tokens");
  if (config.kind != "affine") second_.emplace(parameters, "encoder.linear_fc2.", Split::Rows, parallel);
}

at::Tensor Projector::forward(const at::Tensor& x) const {
  parameters_.await("encoder.");
  return second_ ? (*second_)(squared_relu(first_(x))) : gather_features(first_(x), parallel_);
}

}  // namespace braid
