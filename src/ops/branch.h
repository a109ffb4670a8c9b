#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <utility>

namespace braid {

// What is added to a residual stream: output + bias.   output: [T, H], bias: [H] or undefined
struct Branch {
  at::Tensor output, bias;

  Branch(at::Tensor output = {}, at::Tensor bias = {}) : output(std::move(output)), bias(std::move(bias)) {}
  at::Tensor value() const { return bias.defined() ? output + bias : output; }
};

}  // namespace braid
