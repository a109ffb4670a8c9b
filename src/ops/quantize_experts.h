// Rows of experts in fp8. Those that a cheap function makes are converted where they are made: they are the same, bit
// by bit, as if they were computed in bf16 first.
#pragma once

#include "ops/activation.h"
#include "ops/moe.h"
#include "ops/quantize.h"

namespace braid {

// Where the rows of experts end. Products of an expert's part of the columns need it to begin at a multiple, after
// zeros, so that the parts end elsewhere in columns; where no kernel converts and multiplies, columns have no gaps.
struct Fp8Groups {
  at::Tensor ends;         // [E] int32
  at::Tensor padded_ends;  // [E] int32, or undefined: there is no kernel
};
// For rows like these tensors: of their dtype and device, and each as wide as one of them.
Fp8Groups fp8_groups(const at::Tensor& ends, const Tensors& like);

// rows: [R, C] -> rows [R, C], columns [C, at least R]
Fp8Pair quantize_groups(const at::Tensor& rows, const Fp8Forms& wanted, const Fp8Groups& groups);
// Of permute_to_experts_forward(). Each token is converted once.   tokens: [T, C], R = T * k
Fp8Pair quantize_permuted(const at::Tensor& tokens, const ExpertOrder& order, std::int64_t top_k,
                          const Fp8Forms& wanted, const Fp8Groups& groups);
// Of scaled_squared_relu_forward().
Fp8Pair quantize_scaled_squared_relu(const at::Tensor& x, const at::Tensor& scale, const Fp8Forms& wanted,
                                     const Fp8Groups& groups);

// Of scaled_squared_relu_backward().
struct Fp8ScaledGradients {
  Fp8Pair x;
  at::Tensor scale;  // undefined if not wanted
};
Fp8ScaledGradients quantize_scaled_squared_relu_backward(const at::Tensor& grad, const at::Tensor& x,
                                                         const at::Tensor& scale, const Fp8Forms& wanted,
                                                         bool scale_wants_gradient, const Fp8Groups& groups);

}  // namespace braid
