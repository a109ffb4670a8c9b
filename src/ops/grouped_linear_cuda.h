// Gradients of experts' weights by Braid's kernels; see ops/has_kernel.h.
#pragma once

#include <ATen/core/Tensor.h>

namespace braid::cuda {

// grad = 0 for experts without rows.   ends: [E] int32, grad: [E, Out, In] bf16
void clear_expert_gradients(const at::Tensor& ends, const at::Tensor& grad);

}  // namespace braid::cuda
