#include "ops/experts_fp8.h"
#include <ATen/ops/_scaled_grouped_mm.h>
#include <ATen/ops/empty_like.h>
#include "base/error.h"
#include "ops/has_kernel.h"

namespace braid {

namespace {

// The forms of `rows` rows of experts that kFunction(rows_from, inputs..., forms, queue) writes.
template <auto kFunction, class... Inputs>
Fp8Pair quantize_by(const at::Tensor& from, std::int64_t rows, const Fp8Forms& wanted, const Fp8Groups& groups,
                    const Inputs&... inputs) {
  BRAID_CHECK(from.dim() == 2 && can_quantize(from), "rows of experts in fp8");
  const std::int64_t most = rows + groups.ends.numel() * (kernels::kGroupMultiple - 1);
  const Fp8Pair pair = empty_pair(from, {rows, from.size(1)}, wanted, round_up(most, kernels::kGroupMultiple));
  call<kFunction>(quantizable(from), inputs...,
                  kernels::QuantizedForms{kernel_matrices(pair.rows), kernel_matrices(pair.columns),
                                          kernel_tensor(groups.ends), kernel_tensor(groups.padded_ends)});
  return pair;
}

at::Tensor float_scales(const at::Tensor& scale) { return scale.to(at::kFloat).contiguous(); }

// Each expert's rows times its matrix's transpose.   rows: [R, K], matrices: [E, N, K] -> [R, N]
at::Tensor multiply_rows(const Fp8Matrix& rows, const Fp8Matrix& matrices, const ExpertRows& experts,
                         at::ScalarType dtype, Fp8Sum sum) {
  if (!rows.values.is_cuda() || dtype != at::kBFloat16)
    return grouped_linear_forward(dequantize(rows), dequantize(matrices), experts).to(dtype);
  if (sum == Fp8Sum::Fast && has_kernel({rows.scales, matrices.scales}) && fits_grouped_kernels(matrices.values))
    return fill<kernels::multiply_fp8_rows>(
        rows.values.new_empty({rows.values.size(0), matrices.values.size(1)}, at::kBFloat16), kernel_matrices(rows),
        experts.ends(), kernel_matrices(matrices));
  return at::_scaled_grouped_mm(rows.values, matrices.values.transpose(1, 2), rows.scales, matrices.scales,
                                experts.ends(), {}, {}, dtype, /*use_fast_accum=*/sum == Fp8Sum::Fast);
}

// grad^T rows of each expert. libtorch's grouped product in fp8 has results in bf16 only.   grad: [Out, R], rows: [In,
// R] -> [E, Out, In]
at::Tensor multiply_columns(const Fp8Matrix& grad, const GroupedFp8Saved& saved, const Weight& weight,
                            const ExpertRows& experts) {
  if (saved.padded_ends.defined()) {
    const std::int64_t count = saved.padded_ends.numel();
    const at::Tensor result =
        at::_scaled_grouped_mm(grad.values, saved.columns.values.t(), grad.scales.repeat({count}),
                               saved.columns.scales.repeat({count}), saved.padded_ends, {}, {}, at::kBFloat16,
                               /*use_fast_accum=*/kWeightGradientSum == Fp8Sum::Fast);
    clear_expert_gradients(experts, result);
    return result;
  }
  const Weight like = {.value = at::empty_like(weight.value, weight.value.options().dtype(at::kFloat))};
  const auto rows_of = [](const Fp8Matrix& columns) { return dequantize(columns).t(); };
  return grouped_linear_backward(rows_of(grad), rows_of(saved.columns), like, experts, false)[1];
}

at::Tensor weight_gradient(const Fp8Matrix& grad, const GroupedFp8Saved& saved, const Weight& weight,
                           const ExpertRows& experts) {
  const auto write = [&](at::Tensor sum, bool is_first) {
    if (saved.padded_ends.defined() && has_kernel({grad.scales, saved.columns.scales}) &&
        takes_expert_gradients(sum, is_first)) {
      call_on<kernels::multiply_fp8_columns>(sum.device(), kernel_matrices(grad), kernel_matrices(saved.columns),
                                             saved.padded_ends, sum, is_first);
      return;
    }
    const at::Tensor product = multiply_columns(grad, saved, weight, experts);
    is_first ? sum.copy_(product) : sum.add_(product);
  };
  if (weight.sum->write_by(write, weight.gradient_parts)) return {};
  const at::Tensor result = at::empty_like(weight.value, weight.value.options().requires_grad(false));
  write(result, true);
  return result;
}

// weight: [E, Out, In]
void check_fp8_features(const at::Tensor& weight) {
  BRAID_CHECK(weight.size(1) % kFp8Multiple == 0 && weight.size(2) % kFp8Multiple == 0,
              "features of an fp8 product are multiples of {}, not {} -> {}", kFp8Multiple, weight.size(2),
              weight.size(1));
}

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

Fp8Groups fp8_groups(const at::Tensor& ends, const Tensors& like) {
  const auto has = [](const at::Tensor& x) { return has_kernel({x}) && can_quantize(x); };
  if (!std::all_of(like.begin(), like.end(), has)) return {ends, {}};
  return {ends, fill<kernels::pad_ends>(ends.new_empty(ends.sizes()), ends)};
}

Fp8Pair quantize_groups(const at::Tensor& rows, const Fp8Forms& wanted, const Fp8Groups& groups) {
  if (!groups.padded_ends.defined()) return quantize(rows, wanted);
  return quantize_by<kernels::quantize>(rows, rows.size(0), wanted, groups, std::int64_t{1});
}

Fp8Pair quantize_permuted(const at::Tensor& tokens, const ExpertOrder& order, std::int64_t top_k,
                          const Fp8Forms& wanted, const Fp8Groups& groups) {
  if (!groups.padded_ends.defined())
    return quantize_groups(permute_to_experts_forward(tokens, order, top_k), wanted, groups);
  return quantize_by<kernels::quantize_permuted>(tokens, tokens.size(0) * top_k, wanted, groups, order.order,
                                                 order.inverse, top_k);
}

Fp8Pair quantize_scaled_squared_relu(const at::Tensor& x, const at::Tensor& scale, const Fp8Forms& wanted,
                                     const Fp8Groups& groups) {
  if (!groups.padded_ends.defined()) return quantize_groups(scaled_squared_relu_forward(x, scale), wanted, groups);
  return quantize_by<kernels::quantize_scaled_squared_relu>(x, x.size(0), wanted, groups, float_scales(scale));
}

Fp8ScaledGradients quantize_scaled_squared_relu_backward(const at::Tensor& grad, const at::Tensor& x,
                                                         const at::Tensor& scale, const Fp8Forms& wanted,
                                                         bool scale_wants_gradient, const Fp8Groups& groups) {
  const bool x_wants_gradient = wanted.rows || wanted.columns;
  if (!groups.padded_ends.defined() || !x_wants_gradient) {
    const Tensors grads = scaled_squared_relu_backward(grad, x, scale, {x_wants_gradient, scale_wants_gradient});
    return {x_wants_gradient ? quantize_groups(grads[0], wanted, groups) : Fp8Pair(), grads[1]};
  }
  const at::Tensor scales = float_scales(scale);
  const at::Tensor scale_grad = scale_wants_gradient ? scales.new_empty(scales.sizes()) : at::Tensor();
  const Fp8Pair pair = quantize_by<kernels::quantize_scaled_squared_relu_backward>(grad, grad.size(0), wanted, groups,
                                                                                   quantizable(x), scales, scale_grad);
  return {pair, scale_wants_gradient ? scale_grad.to(scale.scalar_type()) : scale_grad};
}

at::Tensor grouped_linear_fp8_forward(const Fp8Matrix& rows, const Weight& weight, const ExpertRows& experts,
                                      bool rows_want_gradient) {
  const Fp8Pair& matrices = weight.fp8->of(weight.value, {.rows = true, .columns = rows_want_gradient});
  return multiply_rows(rows, matrices.rows, experts, weight.value.scalar_type(), kOutputSum);
}

Tensors grouped_linear_fp8_backward(const Fp8Pair& grad, const GroupedFp8Saved& saved, const Weight& weight,
                                    const ExpertRows& experts) {
  Tensors grads(2);
  if (grad.rows.values.defined()) {
    const Fp8Pair& matrices = weight.fp8->of(weight.value, {.columns = true});
    grads[0] = multiply_rows(grad.rows, matrices.columns, experts, weight.value.scalar_type(), kInputGradientSum);
  }
  if (grad.columns.values.defined()) grads[1] = weight_gradient(grad.columns, saved, weight, experts);
  return grads;
}

at::Tensor grouped_linear_fp8(const at::Tensor& rows, const Weight& weight, const ExpertRows& experts, Result result) {
  const at::Tensor& matrices = weight.value;
  check_grouped_linear(rows, matrices, experts);
  if (rows.size(0) == 0) return grouped_linear(rows, weight, experts, result);
  check_fp8_features(matrices);
  const bool trains = needs_gradient({matrices}), rows_train = rows.requires_grad();
  const auto forward = [&]() -> OutputAndSaved<GroupedFp8Saved> {
    const Fp8Groups groups = fp8_groups(experts.ends(), {rows});
    if (result == Result::Unused)
      return {rows.new_empty({rows.size(0), matrices.size(1)}),
              {trains ? quantize_groups(rows, {.columns = true}, groups).columns : Fp8Matrix(), groups.padded_ends}};
    const Fp8Pair factor = quantize_groups(rows, {.rows = true, .columns = trains}, groups);
    return {grouped_linear_fp8_forward(factor.rows, weight, experts, rows_train), {factor.columns, groups.padded_ends}};
  };
  const auto backward = [weight, experts, trains, rows_train](const at::Tensor& grad, const GroupedFp8Saved& saved) {
    const Fp8Pair factor =
        quantize_groups(grad, {.rows = rows_train, .columns = trains}, {experts.ends(), saved.padded_ends});
    return grouped_linear_fp8_backward(factor, saved, weight, experts);
  };
  return differentiable("GroupedLinearFp8Backward", {rows, matrices}, forward, backward);
}

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
