#pragma once

#include "tensor/autograd.h"
#include "tensor/weight.h"

namespace braid {

// x times weight^T, plus bias.   x: [T, In], weight: [Out, In], bias: [Out] or undefined -> [T, Out]
at::Tensor linear(const at::Tensor& x, const Weight& weight, const at::Tensor& bias);
at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);
// Gradients of x, weight and bias, undefined where not required; the weight's is added to its sum. Saved: x.
Tensors linear_backward(const at::Tensor& grad, const at::Tensor& x, const Weight& weight, bool bias_wants_gradient);

// sum += grad^T x, in the precision of the sum if the device supports it.   grad: [T, Out], x: [T, In], sum: [Out, In]
void add_weight_gradient(const at::Tensor& grad, const at::Tensor& x, at::Tensor& sum);

}  // namespace braid
