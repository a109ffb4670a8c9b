#pragma once

#include "ops/packed_sequences.h"
#include "tensor/autograd.h"

namespace braid {

// silu(bias + depthwise causal convolution): y[t, c] = silu(bias[c] + sum_j weight[c, j] * x[t - (K-1) + j, c]), where
// inputs before the start of a token's sequence are zero. Saves only its inputs.
// x: [T, C], weight: [C, K], bias: [C] or undefined
at::Tensor causal_conv_silu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            const PackedSequences& sequences);
at::Tensor causal_conv_silu_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                    const PackedSequences& sequences);
// Writes the gradient of x into x_grad, which may be columns of a wider tensor. Returns the gradients of weight and
// bias; the latter is undefined if there is no bias.
Tensors causal_conv_silu_backward_into(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                                       const at::Tensor& bias, const PackedSequences& sequences,
                                       const at::Tensor& x_grad);

namespace cuda {  // causal_conv_cuda.cpp

bool has_causal_conv(std::int64_t taps);
decltype(braid::causal_conv_silu_forward) causal_conv_silu_forward;
decltype(braid::causal_conv_silu_backward_into) causal_conv_silu_backward_into;

}  // namespace cuda
}  // namespace braid
