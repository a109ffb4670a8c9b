#include "models/projector.h"

#include <ATen/TensorOperators.h>

#include "base/error.h"
#include "nn/linear.h"
#include "ops/activation.h"

namespace braid {

Projector::Projector(const ProjectorConfig& config, const Parameters& parameters, const Parallel& parallel)
    : affine_(config.kind == "affine"), parameters_(parameters), parallel_(parallel) {
  BRAID_CHECK(!parallel.sequence_parallel, "every tp rank of the projector has all tokens");
}

at::Tensor Projector::forward(const at::Tensor& x) const {
  if (!affine_)
    return Linear(parameters_, "encoder.linear_fc2.", Split::Rows,
                  parallel_)(squared_relu(Linear(parameters_, "encoder.linear_fc1.", Split::Columns, parallel_)(x)));
  return gather_features(Linear(parameters_, "encoder.", Split::Columns, parallel_)(x), parallel_);
}

}  // namespace braid
