#pragma once

#include "tensor/weight.h"

namespace braid {

// x times weight^T, plus bias.   x: [T, In], weight: [Out, In], bias: [Out] or undefined -> [T, Out]
at::Tensor linear(const at::Tensor& x, const Weight& weight, const at::Tensor& bias);

// sum += grad^T x, in the precision of the sum where the device can.   grad: [T, Out], x: [T, In], sum: [Out, In]
void add_weight_gradient(const at::Tensor& grad, const at::Tensor& x, at::Tensor& sum);

}  // namespace braid
