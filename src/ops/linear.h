#pragma once

#include "tensor/autograd.h"
#include "tensor/recomputable.h"
#include "tensor/result.h"
#include "tensor/weight.h"

namespace braid {

// x times weight^T, plus bias. All dimensions of a weight after the first are input features: those of a patch
// embedding are [channels, height, width].   x: [T, In], weight: [Out, In...], bias: [Out] or undefined -> [T, Out]
at::Tensor linear(const Recomputable& x, const Weight& weight, const at::Tensor& bias, Result result = Result::Needed);
at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

struct LinearNeeds {
  bool x_grad = false, bias_grad = false;
};
// Gradients of x, weight and bias, undefined where not needed. The weight's is undefined too if it was added to the
// weight's sum. Saved: x if the weight requires a gradient, else undefined.
Tensors linear_backward(const at::Tensor& grad, const at::Tensor& x, const Weight& weight, const LinearNeeds& needs);

// sum += grad^T x, or sum = grad^T x if it is the first; in the precision of the sum and without a temporary of its
// size. grad: [T, Out], x: [T, In], sum: [Out, In...]
void add_weight_gradient(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& sum, bool is_first = false);

}  // namespace braid
