#include "nn/recompute.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "tensor/autograd.h"

namespace braid {

at::Tensor recompute(const std::function<at::Tensor(const at::Tensor&)>& layer, const at::Tensor& x, bool trains) {
  if (!at::GradMode::is_enabled() || (!trains && !x.requires_grad())) return layer(x);
  at::Tensor y;
  {
    at::NoGradGuard guard;
    y = layer(x);
  }
  const bool wants_input_grad = x.requires_grad();
  return attach_backward("RecomputeBackward", {x}, {y},
                         [layer, saved = x.detach(), wants_input_grad](const std::vector<at::Tensor>& grads) {
                           at::AutoGradMode enabled(true);
                           const at::Tensor input = saved.detach().requires_grad_(wants_input_grad);
                           const at::Tensor output = layer(input);
                           if (output.requires_grad()) torch::autograd::backward({output}, {grads[0]});
                           return std::vector<at::Tensor>{input.grad()};
                         })[0];
}

void add_layer(Residual& stream, const std::function<void(Residual&)>& add, bool recomputed, bool trains) {
  if (!recomputed) return add(stream);
  const auto layer = [add](Residual input) {
    add(input);
    return input.value();
  };
  stream = recompute(layer, stream.value(), trains);
}

}  // namespace braid
