#pragma once

#include <ATen/core/Tensor.h>

namespace braid {

at::Tensor squared_relu(const at::Tensor& x);  // max(x, 0)^2

// max(x, 0)^2 * scale, one scale per row; the product is taken in the wider of the two dtypes, the result has x's.
// x: [R, F], scale: [R]
at::Tensor scaled_squared_relu(const at::Tensor& x, const at::Tensor& scale);

// gate * sigmoid(gate) * up, of a row's two halves. Saves only x.   x: [T, gate | up] = [T, 2 F] -> [T, F]
at::Tensor swiglu(const at::Tensor& x);

at::Tensor quick_gelu(const at::Tensor& x);  // x * sigmoid(1.702 x). Saves only x.

}  // namespace braid
