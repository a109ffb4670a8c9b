#include "nn/recompute.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "tensor/autograd.h"

namespace braid {

Tensors recompute_all(const std::function<Tensors(const Tensors&, Result)>& function,
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
  Tensors results;
  {
    at::NoGradGuard guard;
    results = function(values, Result::Needed);
  }
  const auto backward = [function, saved, want_gradient](const Tensors& grads) {
    at::AutoGradMode enabled(true);
    Tensors again, gradients;
    for (std::size_t i = 0; i < saved.size(); ++i)
      again.push_back(saved[i]().detach().requires_grad_(want_gradient[i]));
    const Tensors outputs = function(again, Result::Unused);
    if (needs_gradient(outputs)) torch::autograd::backward(outputs, grads);
    for (const at::Tensor& input : again) gradients.push_back(input.grad());
    return gradients;
  };
  return attach_backward("RecomputeBackward", values, std::move(results), backward);
}

at::Tensor recompute(const std::function<at::Tensor(const Tensors&)>& function, const std::vector<Recomputable>& inputs,
                     bool trains) {
  return recompute_all([function](const Tensors& in, Result) { return Tensors{function(in)}; }, inputs, trains)[0];
}

at::Tensor recompute(const std::function<at::Tensor(const at::Tensor&)>& layer, const at::Tensor& x, bool trains) {
  return recompute([layer](const Tensors& inputs) { return layer(inputs[0]); }, {Recomputable(x)}, trains);
}

void add_layer(Residual& stream, const std::function<void(Residual&, Result)>& add, bool recomputed, bool trains) {
  if (!recomputed) return add(stream, Result::Needed);
  const auto layer = [add](const Tensors& in, Result result) {
    Residual input(in[0]);
    add(input, result);
    return Tensors{input.value()};
  };
  stream = recompute_all(layer, {Recomputable(stream.value())}, trains)[0];
}

}  // namespace braid
