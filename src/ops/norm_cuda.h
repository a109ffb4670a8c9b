// RMS and layer norms by Braid's kernels; see ops/has_kernel.h and kernels/norm.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace braid::cuda {

bool takes_norm_of(const at::Tensor& x);

struct Statistics {
  at::Tensor mean, inverse_root;  // [T, 1]; an RMS norm has no mean
};
struct Normed : Statistics {
  at::Tensor sum;  // x + branch; undefined without a branch
  at::Tensor output;
};
// branch and bias may be undefined; without a bias it is an RMS norm.
Normed norm_forward(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight, const at::Tensor& bias,
                    double eps);
// Gradients of the sum, weight and, of a layer norm, bias. `sum_grad`: what is added to the first; may be undefined.
std::vector<at::Tensor> norm_backward(const at::Tensor& grad, const at::Tensor& sum_grad, const at::Tensor& sum,
                                      const at::Tensor& weight, const Statistics& saved);

}  // namespace braid::cuda
