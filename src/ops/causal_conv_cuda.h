// The causal convolution by Braid's kernels; see ops/has_kernel.h.
#pragma once

#include "ops/packed_sequences.h"
#include "tensor/autograd.h"

namespace braid::cuda {

bool has_causal_conv(std::int64_t taps);
at::Tensor causal_conv_silu_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                    const PackedSequences& sequences);
// Writes the gradient of x; returns those of weight and bias.
Tensors causal_conv_silu_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                                  const at::Tensor& bias, const PackedSequences& sequences, const at::Tensor& x_grad);

}  // namespace braid::cuda
