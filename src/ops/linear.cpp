#include "ops/linear.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>

namespace braid {

void add_weight_gradient(const at::Tensor& grad, const at::Tensor& x, at::Tensor& sum) {
  if (sum.scalar_type() == x.scalar_type())
    sum.addmm_(grad.t(), x);
  else if (sum.is_cuda())
    at::addmm_out(sum, sum, grad.t(), x, sum.scalar_type());
  else
    sum.add_(at::mm(grad.t(), x));
}

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::linear(x, weight, bias);
}

Tensors linear_backward(const at::Tensor& grad, const at::Tensor& x, const Weight& weight, bool bias_wants_gradient) {
  add_weight_gradient(grad, x, weight.sum->value);
  weight.sum->added();
  return {x.requires_grad() ? grad.mm(weight.value) : at::Tensor(), at::Tensor(),
          bias_wants_gradient ? grad.sum(0) : at::Tensor()};
}

at::Tensor linear(const at::Tensor& x, const Weight& weight, const at::Tensor& bias) {
  if (!weight.sum->is_kept() || !needs_gradient({weight.value})) return at::linear(x, weight.value, bias);
  return differentiable(
      "LinearBackward", {x, weight.value, bias}, [&] { return linear_forward(x, weight.value, bias); },
      [x, weight, bias_trains = bias.defined() && bias.requires_grad()](const at::Tensor& grad) {
        return linear_backward(grad, x, weight, bias_trains);
      });
}

}  // namespace braid
