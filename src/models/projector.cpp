#include "models/projector.h"

#include <ATen/TensorOperators.h>

#include "base/error.h"
#include "nn/linear.h"

namespace braid {

Projector::Projector(const ProjectorConfig& config, const Parameters& parameters, const Parallel& parallel)
    : affine_(config.kind == "affine"), parameters_(parameters), parallel_(parallel) {
  BRAID_CHECK(!parallel.sequence_parallel, "every tp rank of the projector has all tokens");
}

at::Tensor Projector::forward(const at::Tensor& x) const {
  if (!affine_)
    return squared_relu_mlp(x, parameters_.get("encoder.linear_fc1.weight"),
                            parameters_.get("encoder.linear_fc2.weight"), parallel_);
  return gather_features(column_linear(x, parameters_.get("encoder.weight"), {}, parallel_), parallel_);
}

}  // namespace braid
