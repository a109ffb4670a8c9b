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
// Gradients of x, weight and bias; that of an undefined bias is undefined.
Tensors causal_conv_silu_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                                  const at::Tensor& bias, const PackedSequences& sequences);

}  // namespace braid
