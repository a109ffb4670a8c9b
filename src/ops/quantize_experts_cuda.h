// Conversion of experts' rows by Braid's kernels; see ops/has_kernel.h.
#pragma once

#include "ops/quantize_experts.h"

namespace braid::cuda {

at::Tensor padded_ends(const at::Tensor& ends);
Fp8Pair quantize_groups(const at::Tensor& rows, const Fp8Forms& wanted, const Fp8Groups& groups);
Fp8Pair quantize_permuted(const at::Tensor& tokens, const ExpertOrder& order, std::int64_t top_k,
                          const Fp8Forms& wanted, const Fp8Groups& groups);
Fp8Pair quantize_scaled_squared_relu(const at::Tensor& x, const at::Tensor& scale, const Fp8Forms& wanted,
                                     const Fp8Groups& groups);
Fp8ScaledGradients quantize_scaled_squared_relu_backward(const at::Tensor& grad, const at::Tensor& x,
                                                         const at::Tensor& scale, const Fp8Forms& wanted,
                                                         bool scale_wants_gradient, const Fp8Groups& groups);

}  // namespace braid::cuda
