#include "models/projector.h"

#include <ATen/TensorOperators.h>

#include "base/error.h"
#include "dist/collectives.h"
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
  const at::Tensor own_features = column_linear(x, parameters_.get("encoder.weight"), {}, parallel_);
  return parallel_.tp.size() > 1 ? all_gather(own_features, parallel_.tp, 1) : own_features;
}

}  // namespace braid
