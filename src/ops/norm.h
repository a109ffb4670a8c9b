// Normalisations over the last dimension. Statistics are computed in fp32, or in double for double tensors. Backward
// recomputes the normalised values from the inputs; besides these, each saves only its statistics.
#pragma once

#include "tensor/autograd.h"

namespace braid {

// x / sqrt(mean(x^2) + eps) * weight.   x: [T, H], weight: [H]
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
// Saved: inverse_root = 1 / sqrt(mean(x^2) + eps), [T, 1]
OutputAndSaved<at::Tensor> rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps);
Tensors rms_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                          const at::Tensor& inverse_root);  // of x, weight

// Mamba2's output norm: g = y * silu(z); each group of D / groups channels of g is normalised by its own root mean
// square; times weight.   y, z: [T, D], weight: [D]
at::Tensor gated_rms_norm(const at::Tensor& y, const at::Tensor& z, const at::Tensor& weight, std::int64_t groups,
                          double eps);
// Saved: inverse_root of each group, [T, groups, 1]
OutputAndSaved<at::Tensor> gated_rms_norm_forward(const at::Tensor& y, const at::Tensor& z, const at::Tensor& weight,
                                                  std::int64_t groups, double eps);
Tensors gated_rms_norm_backward(const at::Tensor& grad, const at::Tensor& y, const at::Tensor& z,
                                const at::Tensor& weight, const at::Tensor& inverse_root);  // of y, z, weight
// The same, with the gradients of y and z written into y_grad and z_grad, which may be columns of wider tensors;
// returns that of weight.
at::Tensor gated_rms_norm_backward_into(const at::Tensor& grad, const at::Tensor& y, const at::Tensor& z,
                                        const at::Tensor& weight, const at::Tensor& inverse_root,
                                        const at::Tensor& y_grad, const at::Tensor& z_grad);

// (x - mean) / sqrt(variance + eps) * weight + bias.   x: [T, H], weight, bias: [H]
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps);

struct LayerNormStatistics {
  at::Tensor mean, inverse_root;  // [T, 1] each; inverse_root = 1 / sqrt(variance + eps)
};
OutputAndSaved<LayerNormStatistics> layer_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                                       const at::Tensor& bias, double eps);
Tensors layer_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, const LayerNormStatistics& saved);  // of x, weight, bias

}  // namespace braid
