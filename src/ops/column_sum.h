#pragma once

#include <ATen/core/Tensor.h>

namespace braid {

// The sum over rows, in fp32 or wider, rounded once: the gradient of a bias.   x: [T, F] -> [F]
at::Tensor column_sum(const at::Tensor& x);

}  // namespace braid
