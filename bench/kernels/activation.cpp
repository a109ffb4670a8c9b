#include "ops/activation.h"

#include "cases.h"

namespace braid {

std::vector<KernelCase> activation_cases() {
  const at::Tensor x = random_bf16({kTokens, 3712}), grad = random_bf16({kTokens, 3712});
  const auto bytes = static_cast<double>(x.nbytes());
  return {{"squared_relu", 2 * bytes, 0, [=] { squared_relu_forward(x); }},
          {"squared_relu backward", 3 * bytes, 0, [=] { squared_relu_backward(grad, x); }}};
}

}  // namespace braid
