#include "cases.h"
#include "ops/linear_fp8.h"

namespace braid {
namespace {

void add_conversions(std::vector<KernelCase>& cases, const std::string& name, const at::Tensor& x) {
  const auto count = static_cast<double>(x.numel());
  cases.push_back({"quantize rows, " + name, 3 * count, 0, [=] { quantize(x, {.rows = true}); }});
  // Columns need a second reading: their scales depend on all rows.
  cases.push_back({"quantize columns, " + name, 5 * count, 0, [=] { quantize(x, {.columns = true}); }});
  cases.push_back({"quantize both, " + name, 6 * count, 0, [=] { quantize(x, {.rows = true, .columns = true}); }});
}

}  // namespace

std::vector<KernelCase> fp8_cases() {
  constexpr std::int64_t kProjected = 10304, kExperts = 16, kExpertWidth = 1856;  // of in_proj, of experts
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
  return cases;
}

}  // namespace braid
