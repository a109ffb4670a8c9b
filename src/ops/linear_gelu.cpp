#include "ops/linear_gelu.h"

#include "base/error.h"
#include "ops/product.h"

namespace braid {

LinearAndGelu linear_with_gelu(const Recomputable& input, const Weight& weight, const at::Tensor& bias, GeluForm form) {
  const at::Tensor& x = input.value;
  BRAID_CHECK_EQ(x.dim(), 2, "x of a linear map is [tokens, features]");
  BRAID_CHECK(!weight.fp8, "linear maps in fp8 have no GELU");
  at::Tensor activated;
  const LinearNeeds needs = {x.requires_grad(), bias.defined() && bias.requires_grad()};
  const at::Tensor inner = differentiable(
      "LinearWithGeluBackward", {x, weight.value, bias},
      [&] {
        const ProductAndGelu both = product_with_gelu(x, weight.value.flatten(1).t(), bias, form);
        activated = both.activated;
        return both.inner;
      },
      [saved = input.saved_if(weight.value.requires_grad()), weight, needs](const at::Tensor& grad) {
        return linear_backward(grad, saved(), weight, needs);
      });
  return {inner, activated};
}

at::Tensor linear_of_gelu(const at::Tensor& inner, const Recomputable& activated, GeluForm form, const Weight& weight,
                          const at::Tensor& bias, Result result) {
  BRAID_CHECK(inner.dim() == 2 && inner.sizes() == activated.value.sizes(), "a GELU has the shape of its input");
  BRAID_CHECK(!weight.fp8, "linear maps in fp8 have no GELU");
  const LinearNeeds needs = {false, bias.defined() && bias.requires_grad()};
  return differentiable(
      "LinearOfGeluBackward", {inner, weight.value, bias},
      [&] {
        return result == Result::Needed ? linear_forward(activated.value, weight.value, bias)
                                        : inner.new_empty({inner.size(0), weight.value.size(0)});
      },
      [inner, form, saved = activated.saved_if(weight.value.requires_grad()), weight, needs](const at::Tensor& grad) {
        Tensors grads = linear_backward(grad, saved(), weight, needs);
        if (inner.requires_grad()) grads[0] = product_times_gelu_slope(grad, weight.value.flatten(1), inner, form);
        return grads;
      });
}

}  // namespace braid
