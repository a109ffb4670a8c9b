#include "ops/activation.h"
#include "cases.h"

namespace braid {

std::vector<KernelCase> activation_cases() {
  const at::Tensor x = random_bf16({kTokens, 3712}), grad = random_bf16({kTokens, 3712});
  const at::Tensor rows = random_bf16({6 * kTokens, 1856}), rows_grad = random_bf16({6 * kTokens, 1856});
  const at::Tensor scale = random_bf16({6 * kTokens}).to(at::kFloat);
  const at::Tensor patches = random_bf16({kRadioTokens, 4 * kRadioHidden}), patches_grad = at::rand_like(patches);
  const auto bytes = static_cast<double>(x.nbytes()), rows_bytes = static_cast<double>(rows.nbytes());
  const auto patch_bytes = static_cast<double>(patches.nbytes());
  std::vector<KernelCase> cases = {
      {"squared_relu", 2 * bytes, 0, [=] { activation_forward(x, Activation::SquaredRelu); }},
      {"squared_relu backward", 3 * bytes, 0, [=] { activation_backward(grad, x, Activation::SquaredRelu); }},
      {"scaled_squared_relu", 2 * rows_bytes, 0, [=] { scaled_squared_relu_forward(rows, scale); }},
      {"scaled_squared_relu backward", 3 * rows_bytes, 0,
       [=] {
         scaled_squared_relu_backward(rows_grad, rows, scale, {true, true});
       }},
      {"quick_gelu, RADIO", 2 * patch_bytes, 0, [=] { activation_forward(patches, Activation::QuickGelu); }},
      {"quick_gelu, RADIO backward", 3 * patch_bytes, 0,
       [=] { activation_backward(patches_grad, patches, Activation::QuickGelu); }},
      {"swiglu", 1.5 * bytes, 0, [=] { swiglu_forward(x); }},
      {"swiglu backward", 2.5 * bytes, 0, [=, half = grad.narrow(1, 0, 1856)] { swiglu_backward(half, x); }}};
  for (const auto& [name, kind] :
       {std::pair{"gelu erf, RADIO", Activation::GeluErf}, {"gelu tanh, RADIO", Activation::GeluTanh}}) {
    cases.push_back({name, 2 * patch_bytes, 0, [=, kind = kind] { activation_forward(patches, kind); }});
    cases.push_back({std::string(name) + " backward", 3 * patch_bytes, 0,
                     [=, kind = kind] { activation_backward(patches_grad, patches, kind); }});
  }
  return cases;
}

}  // namespace braid
