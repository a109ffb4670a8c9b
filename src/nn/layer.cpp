#include "nn/layer.h"
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

namespace braid {

void Residual::add(Branch branch) {
  value();
  pending_ = std::move(branch);
}

const at::Tensor& Residual::value() const {
  if (pending_.output.defined()) x_ = x_ + std::exchange(pending_, {}).value();
  return x_;
}

// norm(stream); add_norm() gives the stream and its norm while an output is pending.
template <class Norm, class AddNorm>
Recomputable Residual::normed(const Norm& norm, const AddNorm& add_norm, bool recomputed) const {
  at::Tensor result;
  if (pending_.output.defined()) {
    const SumAndNormed both = add_norm();
    pending_ = {};
    x_ = both.sum;
    result = both.normed;
  } else {
    result = norm(x_);
  }
  if (!recomputed) return result;
  return {result, [norm, x = x_.detach()] { return norm(x); }};
}

Recomputable Residual::rms_norm(const at::Tensor& weight, double eps, bool recomputed) const {
  const auto norm = [=](const at::Tensor& x) { return braid::rms_norm(x, weight, eps); };
  return normed(
      norm, [&] { return add_rms_norm(x_, pending_.value(), weight, eps); }, recomputed);
}

Recomputable Residual::layer_norm(const at::Tensor& weight, const at::Tensor& bias, double eps, bool recomputed) const {
  const auto norm = [=](const at::Tensor& x) { return braid::layer_norm(x, weight, bias, eps); };
  return normed(
      norm, [&] { return add_layer_norm(x_, pending_, weight, bias, eps); }, recomputed);
}

Tensors recompute(const std::function<Tensors(const Tensors&, Result)>& function,
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

void add_layer(Residual& stream, const std::function<void(Residual&, Result)>& add, bool recomputed, bool trains) {
  if (!recomputed) return add(stream, Result::Needed);
  const auto layer = [add](const Tensors& in, Result result) {
    Residual input(in[0]);
    add(input, result);
    return Tensors{input.value()};
  };
  stream = recompute(layer, {Recomputable(stream.value())}, trains)[0];
}

}  // namespace braid
