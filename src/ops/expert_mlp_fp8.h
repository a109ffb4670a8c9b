#pragma once

#include <optional>

#include "ops/grouped_linear_fp8.h"
#include "ops/moe.h"

namespace braid {

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
