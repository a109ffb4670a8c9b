#include "nn/recompute.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "tensor/autograd.h"

namespace braid {
namespace {

at::Tensor run_twice(const std::function<at::Tensor(const Tensors&, Result)>& function,
                     const std::vector<Recomputable>& inputs, bool trains) {
  Tensors values;
  std::vector<Recomputable::Function> saved;
  std::vector<bool> want_gradient;
  for (const Recomputable& input : inputs) {
    values.push_back(input.value);
    saved.push_back(Recomputable{input.value.detach(), input.again}.saved_if(true));
    want_gradient.push_back(input.value.requires_grad());
  }
  if (!at::GradMode::is_enabled() || (!trains && !needs_gradient(values))) return function(values, Result::Needed);
  at::Tensor y;
  {
    at::NoGradGuard guard;
    y = function(values, Result::Needed);
  }
  const auto backward = [function, saved, want_gradient](const Tensors& grads) {
    at::AutoGradMode enabled(true);
    Tensors again, gradients;
    for (std::size_t i = 0; i < saved.size(); ++i)
      again.push_back(saved[i]().detach().requires_grad_(want_gradient[i]));
    const at::Tensor output = function(again, Result::Unused);
    if (output.requires_grad()) torch::autograd::backward({output}, {grads[0]});
    for (const at::Tensor& input : again) gradients.push_back(input.grad());
    return gradients;
  };
  return attach_backward("RecomputeBackward", values, {y}, backward)[0];
}

}  // namespace

at::Tensor recompute(const std::function<at::Tensor(const Tensors&)>& function, const std::vector<Recomputable>& inputs,
                     bool trains) {
  return run_twice([function](const Tensors& in, Result) { return function(in); }, inputs, trains);
}

at::Tensor recompute(const std::function<at::Tensor(const at::Tensor&)>& layer, const at::Tensor& x, bool trains) {
  return recompute([layer](const Tensors& inputs) { return layer(inputs[0]); }, {Recomputable(x)}, trains);
}

void add_layer(Residual& stream, const std::function<void(Residual&, Result)>& add, bool recomputed, bool trains) {
  if (!recomputed) return add(stream, Result::Needed);
  const auto layer = [add](const Tensors& in, Result result) {
    Residual input(in[0]);
    add(input, result);
    return input.value();
  };
  stream = run_twice(layer, {Recomputable(stream.value())}, trains);
}

}  // namespace braid
