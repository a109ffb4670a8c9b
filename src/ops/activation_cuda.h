// The activations by Braid's kernels; see ops/has_kernel.h.
#pragma once

#include <ATen/core/Tensor.h>

namespace braid::cuda {

at::Tensor squared_relu_forward(const at::Tensor& x);
at::Tensor squared_relu_backward(const at::Tensor& grad, const at::Tensor& x);

}  // namespace braid::cuda
