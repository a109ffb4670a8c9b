// Mamba2's gated norm by Braid's kernels; see ops/has_kernel.h.
#pragma once

#include "tensor/autograd.h"

namespace braid::cuda {

bool has_gated_rms_norm(std::int64_t group_size);
OutputAndSaved<at::Tensor> gated_rms_norm_forward(const at::Tensor& y, const at::Tensor& z, const at::Tensor& weight,
                                                  std::int64_t groups, double eps);
// Writes the gradients of y and z; returns that of weight.
at::Tensor gated_rms_norm_backward(const at::Tensor& grad, const at::Tensor& y, const at::Tensor& z,
                                   const at::Tensor& weight, const at::Tensor& inverse_root, const at::Tensor& y_grad,
                                   const at::Tensor& z_grad);

}  // namespace braid::cuda
