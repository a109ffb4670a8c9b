#pragma once

#include <ATen/core/Tensor.h>

namespace braid {

at::Tensor squared_relu(const at::Tensor& x);  // max(x, 0)^2

// max(x, 0)^2 * scale, one scale per row; the product is taken in the wider of the two dtypes, the result has x's.
// x: [R, F], scale: [R]
at::Tensor scaled_squared_relu(const at::Tensor& x, const at::Tensor& scale);

}  // namespace braid
