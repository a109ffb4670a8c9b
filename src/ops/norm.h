// Normalisations over the last dimension. Statistics are computed in fp32, or in double for double tensors. Backward
// recomputes the normalised values from the inputs; besides these, each saves only its statistics.
#pragma once

#include "tensor/autograd.h"

namespace braid {

// x / sqrt(mean(x^2) + eps) * weight.   x: [T, H], weight: [H]
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
// (x - mean) / sqrt(variance + eps) * weight + bias.   x: [T, H], weight, bias: [H]
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps);

// What is added to a residual stream: output + bias.   output: [T, H], bias: [H] or undefined
struct Branch {
  at::Tensor output, bias;

  Branch(at::Tensor output = {}, at::Tensor bias = {}) : output(std::move(output)), bias(std::move(bias)) {}
  at::Tensor value() const { return bias.defined() ? output + bias : output; }
};

// A residual stream between two branches: x + branch, and rms_norm or layer_norm of it for the second branch, in one
// pass over memory. The sum is rounded to its dtype before it is normalised.   x: [T, H]
struct SumAndNormed {
  at::Tensor sum, normed;
};
SumAndNormed add_rms_norm(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight, double eps);
// The branch's bias costs no pass over memory, neither here nor in backward.
SumAndNormed add_layer_norm(const at::Tensor& x, const Branch& branch, const at::Tensor& weight, const at::Tensor& bias,
                            double eps);

// One pair for the four operators above: without a bias it is an RMS norm, and the branch may be undefined.
struct NormStatistics {
  at::Tensor mean, inverse_root;  // [T, 1] each; inverse_root = 1 / sqrt(variance + eps); an RMS norm has no mean
};
struct Normed {
  at::Tensor sum, normed;  // the sum is x itself without a branch
  NormStatistics saved;
};
Normed norm_forward(const at::Tensor& x, const Branch& branch, const at::Tensor& weight, const at::Tensor& bias,
                    double eps);
// Gradients of the sum (and so of x and of the branch's output), weight, of a layer norm its bias, and, if wanted, the
// branch's bias, from those of both outputs. `sum_grad` is undefined without a branch.
Tensors norm_backward(const at::Tensor& sum_grad, const at::Tensor& normed_grad, const at::Tensor& sum,
                      const at::Tensor& weight, const at::Tensor& bias, const NormStatistics& saved,
                      bool branch_bias = false);

// Mamba2's output norm: g = y * silu(z); each group of D / groups channels of g is normalised by its own root mean
// square; times weight.   y, z: [T, D], weight: [D]
at::Tensor gated_rms_norm(const at::Tensor& y, const at::Tensor& z, const at::Tensor& weight, std::int64_t groups,
                          double eps);
// Saved: inverse_root of each group, [T, groups, 1]
OutputAndSaved<at::Tensor> gated_rms_norm_forward(const at::Tensor& y, const at::Tensor& z, const at::Tensor& weight,
                                                  std::int64_t groups, double eps);
// Writes the gradients of y and z into y_grad and z_grad, which may be columns of wider tensors; returns that of
// weight.
at::Tensor gated_rms_norm_backward_into(const at::Tensor& grad, const at::Tensor& y, const at::Tensor& z,
                                        const at::Tensor& weight, const at::Tensor& inverse_root,
                                        const at::Tensor& y_grad, const at::Tensor& z_grad);

}  // namespace braid
