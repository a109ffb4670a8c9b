#include "cases.h"
#include "ops/expert_mlp_fp8.h"
#include "ops/linear_fp8.h"
#include "ops/quantize_experts.h"

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

// Rows of experts that are converted where they are made, and the operators around these conversions.
void add_expert_cases(std::vector<KernelCase>& cases) {
  const auto floats = at::TensorOptions(at::kFloat).device(at::kCUDA);
  const at::Tensor chosen = std::get<1>(at::randn({kTokens, kExperts}, floats).topk(kTopK, 1));
  const ExpertOrder order = sort_by_expert(chosen, kExperts);
  const at::Tensor tokens = random_bf16({kTokens, kHidden}), inner = random_bf16({kTopK * kTokens, kExpertWidth});
  const at::Tensor grad = random_bf16(inner.sizes()), weights = at::rand({kTokens, kTopK}, floats);
  const at::Tensor scales = weights_by_expert(weights, order);
  constexpr Fp8Forms kBoth = {.rows = true, .columns = true};
  const auto groups = [=] { return fp8_groups(order.ends, {tokens}); };
  const auto token_count = static_cast<double>(tokens.numel()), count = static_cast<double>(inner.numel());
  cases.push_back({"quantize permuted, rows", (2 + 1.0 * kTopK) * token_count, 0,
                   [=] { quantize_permuted(tokens, order, kTopK, {.rows = true}, groups()); }});
  cases.push_back({"quantize permuted", (4 + 2.0 * kTopK) * token_count, 0,
                   [=] { quantize_permuted(tokens, order, kTopK, kBoth, groups()); }});
  cases.push_back({"quantize scaled_squared_relu, rows", 3 * count, 0,
                   [=] { quantize_scaled_squared_relu(inner, scales, {.rows = true}, groups()); }});
  cases.push_back({"quantize scaled_squared_relu", 6 * count, 0,
                   [=] { quantize_scaled_squared_relu(inner, scales, kBoth, groups()); }});
  cases.push_back({"quantize scaled_squared_relu backward", 10 * count, 0,
                   [=] { quantize_scaled_squared_relu_backward(grad, inner, scales, kBoth, true, groups()); }});

  const auto weight = [](at::IntArrayRef shape) -> Weight {
    return {.value = random_bf16(shape), .fp8 = std::make_shared<Fp8Copies>()};
  };
  const ExpertMlp mlp = {weight({kExperts, kExpertWidth, kHidden}), weight({kExperts, kHidden, kExpertWidth}), order,
                         kTopK};
  const ExpertMlpNeeds all = {true, true, true, true};
  const ExpertMlpSaved saved = expert_mlp_fp8_forward(tokens, weights, {}, mlp, all).saved;
  const double flops = 4 * count * kHidden;
  cases.push_back({"expert_mlp_fp8", 0, flops / 2, [=] { expert_mlp_fp8_forward(tokens, weights, {}, mlp, all); }});
  cases.push_back({"expert_mlp_fp8 backward", 0, flops, [=] { expert_mlp_fp8_backward(tokens, saved, mlp, all); }});
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
      {"linear_fp8, in_proj", 0, flops / 2, [=] { linear_fp8_forward(x, weight, {}, {.x_grad = true}, true); }});
  cases.push_back({"linear_fp8 backward, in_proj", 0, flops,
                   [=] { linear_fp8_backward(grad, columns, weight, {.x_grad = true}); }});
  add_expert_cases(cases);
  return cases;
}

}  // namespace braid
