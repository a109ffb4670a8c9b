// Normalisations over the last dimension. Statistics are computed in fp32, or in double for double tensors.
#pragma once

#include <ATen/core/Tensor.h>

namespace braid {

// x / sqrt(mean(x^2) + eps) * weight.   x: [T, H], weight: [H]
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// Mamba2's output norm: g = y * silu(z); each group of D / groups channels of g is normalised by its own root mean
// square; times weight.   y, z: [T, D], weight: [D]
at::Tensor gated_rms_norm(const at::Tensor& y, const at::Tensor& z, const at::Tensor& weight, std::int64_t groups,
                          double eps);

// (x - mean) / sqrt(variance + eps) * weight + bias.   x: [T, H]
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps);

}  // namespace braid
