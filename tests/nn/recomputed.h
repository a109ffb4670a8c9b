// A layer of one tensor that backward runs again.
#pragma once

#include "nn/layer.h"

namespace braid::testing {

inline at::Tensor recomputed(const std::function<at::Tensor(const at::Tensor&)>& layer, const at::Tensor& x,
                             bool trains = true) {
  return recompute([layer](const Tensors& in, Result) { return Tensors{layer(in[0])}; }, {x}, trains)[0];
}

}  // namespace braid::testing
