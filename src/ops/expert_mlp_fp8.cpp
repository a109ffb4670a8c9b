#include "ops/expert_mlp_fp8.h"

#include "base/error.h"
#include "ops/quantize_experts.h"

namespace braid {
namespace {

struct Activated {
  Fp8Matrix rows;  // of fc2's input
  ExpertMlpSaved saved;
};

// Everything before fc2's product.
Activated activate(const at::Tensor& tokens, const at::Tensor& weights, const ExpertMlp& mlp,
                   const ExpertMlpNeeds& needs) {
  const Fp8Groups groups = fp8_groups(mlp.order.ends, {tokens, mlp.fc2.value});
  const Fp8Pair rows =
      quantize_permuted(tokens, mlp.order, mlp.top_k, {.rows = true, .columns = needs.fc1_grad}, groups);
  const at::Tensor inner = grouped_linear_fp8_forward(rows.rows, mlp.fc1, ExpertRows(groups.ends), needs.tokens_grad);
  const at::Tensor scales = weights.reshape(-1).index_select(0, mlp.order.order);
  const Fp8Pair activated =
      quantize_scaled_squared_relu(inner, scales, {.rows = true, .columns = needs.fc2_grad}, groups);
  return {activated.rows, {{rows.columns, groups.padded_ends}, {activated.columns, groups.padded_ends}, inner, scales}};
}

}  // namespace

OutputAndSaved<ExpertMlpSaved> expert_mlp_fp8_forward(const at::Tensor& tokens, const at::Tensor& weights,
                                                      const at::Tensor& added, const ExpertMlp& mlp,
                                                      const ExpertMlpNeeds& needs) {
  const Activated activated = activate(tokens, weights, mlp, needs);
  const at::Tensor rows =
      grouped_linear_fp8_forward(activated.rows, mlp.fc2, ExpertRows(mlp.order.ends), needs.activated_grad());
  return {permute_to_experts_backward(rows, mlp.order, mlp.top_k, added), activated.saved};
}

Tensors expert_mlp_fp8_backward(const at::Tensor& grad, const ExpertMlpSaved& saved, const ExpertMlp& mlp,
                                const ExpertMlpNeeds& needs) {
  const ExpertRows experts(mlp.order.ends);
  const Fp8Groups groups = {mlp.order.ends, saved.rows.padded_ends};
  const Tensors of_fc2 = grouped_linear_fp8_backward(
      quantize_permuted(grad, mlp.order, mlp.top_k, {.rows = needs.activated_grad(), .columns = needs.fc2_grad},
                        groups),
      saved.activated, mlp.fc2, experts);
  if (!needs.activated_grad()) return {{}, {}, {}, of_fc2[1]};
  const Fp8ScaledGradients inner = quantize_scaled_squared_relu_backward(
      of_fc2[0], saved.inner, saved.scales, {.rows = needs.tokens_grad, .columns = needs.fc1_grad}, needs.weights_grad,
      groups);
  const Tensors of_fc1 = grouped_linear_fp8_backward(inner.x, saved.rows, mlp.fc1, experts);
  return {needs.tokens_grad ? permute_to_experts_backward(of_fc1[0], mlp.order, mlp.top_k) : at::Tensor(),
          needs.weights_grad ? inner.scale.index_select(0, mlp.order.inverse).view({-1, mlp.top_k}) : at::Tensor(),
          of_fc1[1], of_fc2[1]};
}

at::Tensor expert_mlp_fp8(const Recomputable& tokens, const at::Tensor& weights, const at::Tensor& added,
                          const ExpertMlp& mlp, bool recomputed, Result result) {
  const at::Tensor &x = tokens.value, &fc1 = mlp.fc1.value, &fc2 = mlp.fc2.value;
  BRAID_CHECK(x.size(0) > 0, "experts in fp8 without tokens");
  BRAID_CHECK_EQ(x.size(0) * mlp.top_k, mlp.order.order.numel(), "each token has {} rows", mlp.top_k);
  BRAID_CHECK(x.size(1) == fc1.size(2) && fc1.size(1) == fc2.size(2) && x.size(1) == fc2.size(1),
              "tokens of width {} and experts {} -> {} -> {}", x.size(1), fc1.size(2), fc1.size(1), fc2.size(1));
  check_fp8_features(fc1);
  const ExpertMlpNeeds needs = {x.requires_grad(), weights.requires_grad(), needs_gradient({fc1}),
                                needs_gradient({fc2})};
  using Saved = std::optional<ExpertMlpSaved>;
  const auto forward = [&]() -> OutputAndSaved<Saved> {
    if (result == Result::Unused)
      return {x.new_empty(x.sizes()), recomputed ? Saved() : Saved(activate(x, weights, mlp, needs).saved)};
    // Columns are for backward, which makes its own if it computes everything again.
    ExpertMlpNeeds now = needs;
    if (recomputed) now.fc1_grad = now.fc2_grad = false;
    const auto [y, saved] = expert_mlp_fp8_forward(x, weights, added, mlp, now);
    return {y, recomputed ? Saved() : Saved(saved)};
  };
  const auto backward = [again = tokens.saved_if(recomputed), weights = weights.detach(), mlp, needs](
                            const at::Tensor& grad, const Saved& saved) {
    Tensors grads =
        expert_mlp_fp8_backward(grad, saved ? *saved : activate(again(), weights, mlp, needs).saved, mlp, needs);
    grads.push_back(grad);
    return grads;
  };
  return differentiable("ExpertMlpFp8Backward", {x, weights, fc1, fc2, added}, forward, backward);
}

}  // namespace braid
