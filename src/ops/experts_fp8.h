// Rows of experts in fp8. Those that a cheap function makes are converted where they are made: they are the same, bit
// by bit, as if they were computed in bf16 first.
#pragma once

#include "ops/activation.h"
#include "ops/moe.h"
#include "ops/quantize.h"

namespace braid {

// Where the rows of experts end. Products of an expert's part of the columns need it to begin at a multiple, after
// zeros, so that the parts end elsewhere in columns; where no kernel converts and multiplies, columns have no gaps.
struct Fp8Groups {
  at::Tensor ends;         // [E] int32
  at::Tensor padded_ends;  // [E] int32, or undefined: there is no kernel
};
// For rows like these tensors: of their dtype and device, and each as wide as one of them.
Fp8Groups fp8_groups(const at::Tensor& ends, const Tensors& like);

// rows: [R, C] -> rows [R, C], columns [C, at least R]
Fp8Pair quantize_groups(const at::Tensor& rows, const Fp8Forms& wanted, const Fp8Groups& groups);
// Of permute_to_experts_forward(). Each token is converted once.   tokens: [T, C], R = T * k
Fp8Pair quantize_permuted(const at::Tensor& tokens, const ExpertOrder& order, std::int64_t top_k,
                          const Fp8Forms& wanted, const Fp8Groups& groups);
// Of scaled_squared_relu_forward().
Fp8Pair quantize_scaled_squared_relu(const at::Tensor& x, const at::Tensor& scale, const Fp8Forms& wanted,
                                     const Fp8Groups& groups);

// Of scaled_squared_relu_backward().
struct Fp8ScaledGradients {
  Fp8Pair x;
  at::Tensor scale;  // undefined if not wanted
};
Fp8ScaledGradients quantize_scaled_squared_relu_backward(const at::Tensor& grad, const at::Tensor& x,
                                                         const at::Tensor& scale, const Fp8Forms& wanted,
                                                         bool scale_wants_gradient, const Fp8Groups& groups);

// grouped_linear() with both factors of its three products in fp8, as linear_fp8(). Scales by feature are those of all
// experts' rows together. Features are multiples of 16. Without rows it is grouped_linear() itself.
at::Tensor grouped_linear_fp8(const at::Tensor& rows, const Weight& weight, const ExpertRows& experts,
                              Result result = Result::Needed);

// Of rows that are in fp8 already.
at::Tensor grouped_linear_fp8_forward(const Fp8Matrix& rows, const Weight& weight, const ExpertRows& experts,
                                      bool rows_want_gradient);

struct GroupedFp8Saved {
  Fp8Matrix columns;       // of the rows, if the weight requires a gradient
  at::Tensor padded_ends;  // [E] int32, where the experts' rows end in it, on a GPU
};
// As grouped_linear_backward. The gradient has rows if those of the map require one, and columns if the weight does.
Tensors grouped_linear_fp8_backward(const Fp8Pair& grad, const GroupedFp8Saved& saved, const Weight& weight,
                                    const ExpertRows& experts);

struct ExpertMlp {
  Weight fc1, fc2;  // [E, F, H], [E, H, F]
  ExpertOrder order;
  std::int64_t top_k = 1;
};

// All experts of a mixture, from tokens to tokens, with their products in fp8:
//   rows = permute_to_experts(tokens), scales = weights_by_expert(weights)
//   unpermute_from_experts(grouped_linear(scaled_squared_relu(grouped_linear(rows, fc1), scales), fc2), added)
// It gives the same bits as these operators, except for the order of sums in the gradient of `weights`, but the factors
// of the products never exist in bf16. Saves the factors' columns and fc1's output; `recomputed`: only tokens and
// weights.   tokens: [T, H], weights: [T, k], added: [T, H] or undefined -> [T, H]
at::Tensor expert_mlp_fp8(const Recomputable& tokens, const at::Tensor& weights, const at::Tensor& added,
                          const ExpertMlp& mlp, bool recomputed = false, Result result = Result::Needed);

struct ExpertMlpNeeds {
  bool tokens_grad = false, weights_grad = false, fc1_grad = false, fc2_grad = false;

  bool inner_grad() const { return tokens_grad || fc1_grad; }
  bool activated_grad() const { return inner_grad() || weights_grad; }
};
struct ExpertMlpSaved {
  GroupedFp8Saved rows, activated;  // of fc1 and of fc2
  at::Tensor inner, scales;         // [R, F], [R]
};
OutputAndSaved<ExpertMlpSaved> expert_mlp_fp8_forward(const at::Tensor& tokens, const at::Tensor& weights,
                                                      const at::Tensor& added, const ExpertMlp& mlp,
                                                      const ExpertMlpNeeds& needs);
// Gradients of tokens, weights, fc1 and fc2, undefined where not needed. That of a weight is undefined too if it was
// added to its sum.
Tensors expert_mlp_fp8_backward(const at::Tensor& grad, const ExpertMlpSaved& saved, const ExpertMlp& mlp,
                                const ExpertMlpNeeds& needs);

}  // namespace braid
