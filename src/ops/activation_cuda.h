// The activations by Braid's kernels; see ops/has_kernel.h.
#pragma once

#include "ops/activation.h"

namespace braid::cuda {

at::Tensor squared_relu_forward(const at::Tensor& x);
at::Tensor squared_relu_backward(const at::Tensor& grad, const at::Tensor& x);

// scale: float or bf16, whatever x is
at::Tensor scaled_squared_relu_forward(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& places);
Tensors scaled_squared_relu_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& scale,
                                     const ScaledNeeds& needs, const at::Tensor& places);

at::Tensor swiglu_forward(const at::Tensor& x);  // x: [T, 2 F], as in the backward
at::Tensor swiglu_backward(const at::Tensor& grad, const at::Tensor& x);

at::Tensor gelu_forward(const at::Tensor& x, bool tanh);
at::Tensor gelu_backward(const at::Tensor& grad, const at::Tensor& x, bool tanh);

at::Tensor quick_gelu_forward(const at::Tensor& x);
at::Tensor quick_gelu_backward(const at::Tensor& grad, const at::Tensor& x);

}  // namespace braid::cuda
