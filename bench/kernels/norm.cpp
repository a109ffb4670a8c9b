#include "ops/norm.h"
#include "cases.h"

namespace braid {
namespace {

constexpr double kEps = 1e-5;

void add_cases(std::vector<KernelCase>& cases, const std::string& name, std::int64_t tokens, std::int64_t width,
               bool has_bias) {
  const at::Tensor x = random_bf16({tokens, width}), branch = random_bf16({tokens, width});
  const at::Tensor weight = random_bf16({width}), bias = has_bias ? random_bf16({width}) : at::Tensor();
  const auto bytes = static_cast<double>(x.nbytes());
  const NormStatistics saved = norm_forward(x, branch, weight, bias, kEps).saved;
  cases.push_back({name, 2 * bytes, 0, [=] { norm_forward(x, {}, weight, bias, kEps); }});
  cases.push_back({name + " backward", 3 * bytes, 0, [=] { norm_backward({}, branch, x, weight, bias, saved); }});
  cases.push_back({"add_" + name, 4 * bytes, 0, [=] { norm_forward(x, branch, weight, bias, kEps); }});
  cases.push_back({"add_" + name + " backward", 4 * bytes, 0,
                   [=, grad = random_bf16({tokens, width})] { norm_backward(grad, branch, x, weight, bias, saved); }});
}

}  // namespace

std::vector<KernelCase> norm_cases() {
  std::vector<KernelCase> cases;
  add_cases(cases, "rms_norm", kTokens, kHidden, /*has_bias=*/false);
  add_cases(cases, "layer_norm, RADIO", kRadioTokens, kRadioHidden, /*has_bias=*/true);
  return cases;
}

}  // namespace braid
