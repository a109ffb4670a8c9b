#include "cases.h"
#include "ops/experts_fp8.h"
#include "ops/linear.h"

namespace braid {
namespace {

void add_conversions(std::vector<KernelCase>& cases, const std::string& name, const at::Tensor& x) {
  const auto count = static_cast<double>(x.numel());
  cases.push_back({"quantize rows, " + name, 3 * count, 0, [=] { quantize(x, {.rows = true}); }});
  // Columns need a second reading: their scales depend on all rows.
  cases.push_back({"quantize columns, " + name, 5 * count, 0, [=] { quantize(x, {.columns = true}); }});
  cases.push_back({"quantize both, " + name, 6 * count, 0, [=] { quantize(x, {.rows = true, .columns = true}); }});
}

constexpr std::int64_t kProjected = 10304;  // of in_proj
constexpr std::int64_t kExperts = 16, kTopK = 6, kExpertWidth = 1856;
constexpr Fp8Forms kBoth = {.rows = true, .columns = true};

at::TensorOptions floats() { return at::TensorOptions(at::kFloat).device(at::kCUDA); }

ExpertOrder random_order() {
  return sort_by_expert(std::get<1>(at::randn({kTokens, kExperts}, floats()).topk(kTopK, 1)), kExperts);
}

Weight fp8_weight(at::IntArrayRef shape) { return {.value = random_bf16(shape), .fp8 = std::make_shared<Fp8Copies>()}; }

// Rows of experts that are converted where they are made, and the operators around these conversions.
void add_expert_cases(std::vector<KernelCase>& cases) {
  const ExpertOrder order = random_order();
  const at::Tensor tokens = random_bf16({kTokens, kHidden}), inner = random_bf16({kTopK * kTokens, kExpertWidth});
  const at::Tensor grad = random_bf16(inner.sizes()), weights = at::rand({kTokens, kTopK}, floats());
  const at::Tensor scales = weights_by_expert(weights, order);
  const Fp8Groups groups = fp8_groups(order.ends, {tokens});
  const auto token_count = static_cast<double>(tokens.numel()), count = static_cast<double>(inner.numel());
  cases.push_back({"quantize permuted, rows", (2 + 1.0 * kTopK) * token_count, 0,
                   [=] { quantize_permuted(tokens, order, kTopK, {.rows = true}, groups); }});
  cases.push_back({"quantize permuted", (4 + 2.0 * kTopK) * token_count, 0,
                   [=] { quantize_permuted(tokens, order, kTopK, kBoth, groups); }});
  cases.push_back({"quantize scaled_squared_relu, rows", 3 * count, 0,
                   [=] { quantize_scaled_squared_relu(inner, scales, {.rows = true}, groups); }});
  cases.push_back({"quantize scaled_squared_relu", 6 * count, 0,
                   [=] { quantize_scaled_squared_relu(inner, scales, kBoth, groups); }});
  cases.push_back({"quantize scaled_squared_relu backward", 10 * count, 0,
                   [=] { quantize_scaled_squared_relu_backward(grad, inner, scales, kBoth, true, groups); }});

  const ExpertMlp mlp = {fp8_weight({kExperts, kExpertWidth, kHidden}), fp8_weight({kExperts, kHidden, kExpertWidth}),
                         order, kTopK};
  const ExpertMlpNeeds all = {true, true, true, true};
  const ExpertMlpSaved saved = expert_mlp_fp8_forward(tokens, weights, {}, mlp, all).saved;
  const double flops = 4 * count * kHidden;
  cases.push_back({"expert_mlp_fp8", 0, flops, [=] { expert_mlp_fp8_forward(tokens, weights, {}, mlp, all); }});
  cases.push_back({"expert_mlp_fp8 backward", 0, 2 * flops, [=] { expert_mlp_fp8_backward(tokens, saved, mlp, all); }});
}

// The products of experts alone.
void add_expert_products(std::vector<KernelCase>& cases) {
  const at::Tensor ends = random_order().ends, wide = random_bf16({kTopK * kTokens, kHidden}),
                   narrow = random_bf16({kTopK * kTokens, kExpertWidth});
  const Fp8Groups groups = fp8_groups(ends, {wide, narrow});
  const Fp8Pair rows = quantize_groups(wide, kBoth, groups), grad = quantize_groups(narrow, kBoth, groups);
  const Weight weight = fp8_weight({kExperts, kExpertWidth, kHidden}), with_sum = {weight.value};
  with_sum.sum->value = at::zeros(weight.value.sizes(), floats());
  const double flops = 2.0 * kTopK * kTokens * kHidden * kExpertWidth;
  const auto add_backward = [&](const std::string& name, const Fp8Pair& of, const Weight& to) {
    cases.push_back({"fp8 experts' " + name, 0, flops, [=, saved = GroupedFp8Saved{rows.columns, groups.padded_ends}] {
                       grouped_linear_fp8_backward(of, saved, to, ExpertRows(ends));
                     }});
  };
  cases.push_back(
      {"fp8 experts' fc1", 0, flops, [=] { grouped_linear_fp8_forward(rows.rows, weight, ExpertRows(ends), true); }});
  add_backward("dx", {.rows = grad.rows, .columns = {}}, weight);
  add_backward("dW", {.rows = {}, .columns = grad.columns}, weight);
  add_backward("dW, added to a sum", {.rows = {}, .columns = grad.columns}, with_sum);
}

}  // namespace

std::vector<KernelCase> fp8_cases() {
  std::vector<KernelCase> cases;
  add_conversions(cases, "hidden", random_bf16({kTokens, kHidden}));
  add_conversions(cases, "in_proj", random_bf16({kTokens, kProjected}));
  add_conversions(cases, "experts", random_bf16({kExperts, kExpertWidth, kHidden}));

  const at::Tensor x = random_bf16({kTokens, kHidden}), grad = random_bf16({kTokens, kProjected});
  const Weight weight = {.value = random_bf16({kProjected, kHidden}), .fp8 = std::make_shared<Fp8Copies>()};
  const double flops = 2.0 * kTokens * kHidden * kProjected;
  const Fp8Matrix columns = quantize(x, {.columns = true}).columns;
  cases.push_back(
      {"linear_fp8, in_proj", 0, flops, [=] { linear_fp8_forward(x, weight, {}, {.x_grad = true}, true); }});
  cases.push_back({"linear_fp8 backward, in_proj", 0, 2 * flops,
                   [=] { linear_fp8_backward(grad, columns, weight, {.x_grad = true}); }});
  add_expert_cases(cases);
  add_expert_products(cases);
  for (KernelCase& kernel : cases) kernel.fp8 = true;
  return cases;
}

}  // namespace braid
