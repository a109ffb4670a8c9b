// A residual stream between two branches: adds the first branch's output and normalises the sum for the second, in one
// pass over memory. The sum is rounded to its dtype before it is normalised, as if by `+` and ops/norm.h.
#pragma once

#include "ops/branch.h"
#include "ops/norm.h"

namespace braid {

struct SumAndNormed {
  at::Tensor sum, normed;
};
// x + branch, and rms_norm or layer_norm of it.   x: [T, H]
SumAndNormed add_rms_norm(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight, double eps);
// The branch's bias costs no pass over memory, neither here nor in backward.
SumAndNormed add_layer_norm(const at::Tensor& x, const Branch& branch, const at::Tensor& weight, const at::Tensor& bias,
                            double eps);

struct SumNormedAndSaved {
  at::Tensor sum, normed;
  LayerNormStatistics saved;  // those of an RMS norm have no mean
};
// An RMS norm if there is no bias.
SumNormedAndSaved add_norm_forward(const at::Tensor& x, const Branch& branch, const at::Tensor& weight,
                                   const at::Tensor& bias, double eps);
// Gradients of the sum (and so of x and of the branch's output), weight, of a layer norm its bias, and, if wanted, the
// branch's bias, from those of both outputs.
Tensors add_norm_backward(const at::Tensor& sum_grad, const at::Tensor& normed_grad, const at::Tensor& sum,
                          const at::Tensor& weight, const at::Tensor& bias, const LayerNormStatistics& saved,
                          bool branch_bias = false);

}  // namespace braid
