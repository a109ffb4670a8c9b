// RMS and layer norms by Braid's kernels; see ops/has_kernel.h and kernels/norm.h.
#pragma once

#include "ops/branch.h"
#include "ops/norm.h"

namespace braid::cuda {

bool takes_norm_of(const at::Tensor& x);

struct Statistics {
  at::Tensor mean, inverse_root;  // [T, 1]; an RMS norm has no mean
};
struct Normed : Statistics {
  at::Tensor sum;  // x + branch; undefined without a branch
  at::Tensor output;
};
// The branch and its bias may be undefined. Without a bias it is an RMS norm.
Normed norm_forward(const at::Tensor& x, const Branch& branch, const at::Tensor& weight, const at::Tensor& bias,
                    double eps);
// Gradients of the sum, weight, of a layer norm its bias, and, if wanted, the branch's bias. `sum_grad`: what is added
// to the first; may be undefined.
Tensors norm_backward(const at::Tensor& grad, const at::Tensor& sum_grad, const at::Tensor& sum,
                      const at::Tensor& weight, const Statistics& saved, bool branch_bias = false);

}  // namespace braid::cuda
