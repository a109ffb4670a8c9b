// A linear map with a GELU before or after it, which GPUs compute together.
#pragma once

#include "ops/activation.h"
#include "ops/linear.h"

namespace braid {

// linear(x, weight, bias), and its GELU, through which no gradient passes: linear_of_gelu() gives that of `inner`.
struct LinearAndGelu {
  at::Tensor inner, activated;
};
LinearAndGelu linear_with_gelu(const Recomputable& x, const Weight& weight, const at::Tensor& bias, GeluForm form);

// linear(gelu(inner), weight, bias), with the gradient of `inner`. activated: gelu(inner)
at::Tensor linear_of_gelu(const at::Tensor& inner, const Recomputable& activated, GeluForm form, const Weight& weight,
                          const at::Tensor& bias, Result result = Result::Needed);

}  // namespace braid
