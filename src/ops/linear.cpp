#include "ops/linear.h"

#include "base/error.h"
#include "ops/column_sum.h"
#include "ops/product.h"

namespace braid {

void add_weight_gradient(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& sum, bool is_first) {
  add_product(sum.flatten(1), grad.t(), x, is_first);
}

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return product(x, weight.flatten(1).t(), bias);
}

namespace {

at::Tensor weight_gradient(const at::Tensor& grad, const at::Tensor& x, const Weight& weight) {
  const auto write = [&](const at::Tensor& sum, bool is_first) { add_weight_gradient(grad, x, sum, is_first); };
  if (weight.sum->write_by(write)) return {};
  return product(grad.t(), x).view(weight.value.sizes());
}

}  // namespace

Tensors linear_backward(const at::Tensor& grad, const at::Tensor& x, const Weight& weight, const LinearNeeds& needs) {
  const at::Tensor bias_grad = needs.bias_grad ? column_sum(grad) : at::Tensor();  // while grad is in a GPU's cache
  return {needs.x_grad ? product(grad, weight.value.flatten(1)) : at::Tensor(),
          x.defined() ? weight_gradient(grad, x, weight) : at::Tensor(), bias_grad};
}

at::Tensor linear(const Recomputable& input, const Weight& weight, const at::Tensor& bias, Result result) {
  const at::Tensor& x = input.value;
  BRAID_CHECK_EQ(x.dim(), 2, "x of a linear map is [tokens, features]");
  const LinearNeeds needs = {x.requires_grad(), bias.defined() && bias.requires_grad()};
  return differentiable(
      "LinearBackward", {x, weight.value, bias},
      [&] {
        return result == Result::Needed ? linear_forward(x, weight.value, bias)
                                        : x.new_empty({x.size(0), weight.value.size(0)});
      },
      [saved = input.saved_if(weight.value.requires_grad()), weight, needs](const at::Tensor& grad) {
        return linear_backward(grad, saved(), weight, needs);
      });
}

}  // namespace braid
