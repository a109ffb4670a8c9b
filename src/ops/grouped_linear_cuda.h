// Gradients of experts' weights by Braid's kernels; see ops/has_kernel.h.
#pragma once

#include <ATen/core/Tensor.h>

namespace braid::cuda {

// For experts that have rows: sum += grad.   grad: [E, Out, In] bf16, ends: [E] int32, sum: [E, Out, In] fp32
void add_expert_gradients(const at::Tensor& grad, const at::Tensor& ends, const at::Tensor& sum);
// For the others: grad = 0.
void clear_expert_gradients(const at::Tensor& ends, const at::Tensor& grad);

}  // namespace braid::cuda
