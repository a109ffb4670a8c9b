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
      {"squared_relu", 2 * bytes, 0, [=] { squared_relu_forward(x); }},
      {"squared_relu backward", 3 * bytes, 0, [=] { squared_relu_backward(grad, x); }},
      {"scaled_squared_relu", 2 * rows_bytes, 0, [=] { scaled_squared_relu_forward(rows, scale); }},
      {"scaled_squared_relu backward", 3 * rows_bytes, 0,
       [=] {
         scaled_squared_relu_backward(rows_grad, rows, scale, {true, true});
       }},
      {"quick_gelu, RADIO", 2 * patch_bytes, 0, [=] { quick_gelu_forward(patches); }},
      {"quick_gelu, RADIO backward", 3 * patch_bytes, 0, [=] { quick_gelu_backward(patches_grad, patches); }},
      {"swiglu", 1.5 * bytes, 0, [=] { swiglu_forward(x); }},
      {"swiglu backward", 2.5 * bytes, 0, [=, half = grad.narrow(1, 0, 1856)] { swiglu_backward(half, x); }}};
  for (const auto& [name, form] : {std::pair{"gelu erf, RADIO", GeluForm::Erf}, {"gelu tanh, RADIO", GeluForm::Tanh}}) {
    cases.push_back({name, 2 * patch_bytes, 0, [=, form = form] { gelu_forward(patches, form); }});
    cases.push_back({std::string(name) + " backward", 3 * patch_bytes, 0,
                     [=, form = form] { gelu_backward(patches_grad, patches, form); }});
  }
  return cases;
}

}  // namespace braid
