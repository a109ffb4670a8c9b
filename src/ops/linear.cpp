#include "ops/linear.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>

#include "tensor/autograd.h"

namespace braid {

void add_weight_gradient(const at::Tensor& grad, const at::Tensor& x, at::Tensor& sum) {
  if (sum.scalar_type() == x.scalar_type())
    sum.addmm_(grad.t(), x);
  else if (sum.is_cuda())
    at::addmm_out(sum, sum, grad.t(), x, sum.scalar_type());
  else
    sum.add_(at::mm(grad.t(), x));
}

at::Tensor linear(const at::Tensor& x, const Weight& weight, const at::Tensor& bias) {
  if (!weight.sum->is_kept() || !needs_gradient({weight.value})) return at::linear(x, weight.value, bias);
  at::Tensor y;
  {
    at::NoGradGuard guard;
    y = at::linear(x, weight.value, bias);
  }
  const bool bias_trains = bias.defined() && bias.requires_grad();
  return attach_backward("LinearBackward", {x, weight.value, bias}, {y},
                         [x, weight, bias_trains](const std::vector<at::Tensor>& grads) {
                           const at::Tensor& grad = grads[0];
                           add_weight_gradient(grad, x, weight.sum->value);
                           weight.sum->added();
                           return std::vector<at::Tensor>{x.requires_grad() ? grad.mm(weight.value) : at::Tensor(),
                                                          at::Tensor(), bias_trains ? grad.sum(0) : at::Tensor()};
                         })[0];
}

}  // namespace braid
