#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/sort.h>

#include "base/error.h"
#include "ops/moe.h"

namespace braid {
namespace {

at::Tensor sum_of(const at::Tensor& chosen) { return chosen.sum(1, /*keepdim=*/true).add_(kNeverZero); }

at::Tensor weights_of(const at::Tensor& chosen, const RouterOptions& options) {
  return (options.normalize ? chosen / sum_of(chosen) : chosen) * options.scaling;
}

// With S the sum and w = scaling * c / S:   dw_i / dc_j = scaling * ([i == j] - c_i / S) / S
at::Tensor chosen_grad(const at::Tensor& chosen, const at::Tensor& weights_grad, const RouterOptions& options) {
  const at::Tensor grad = weights_grad * options.scaling;
  if (!options.normalize) return grad;
  const at::Tensor sum = sum_of(chosen);
  return (grad - (grad * (chosen / sum)).sum(1, /*keepdim=*/true)) / sum;
}

}  // namespace

Routing route_forward(const at::Tensor& logits, const at::Tensor& bias, const RouterOptions& options) {
  const at::Tensor scores = logits.to(at::toOpMathType(logits.scalar_type())).sigmoid();
  // A stable sort, because topk leaves the order of ties to the device.
  const at::Tensor order = std::get<1>(at::sort(scores + bias, /*stable=*/true, /*dim=*/1, /*descending=*/true));
  const at::Tensor experts = order.narrow(1, 0, options.top_k).contiguous();
  return {.scores = scores, .experts = experts, .weights = weights_of(scores.gather(1, experts), options)};
}

// A token chooses an expert at most once, so the chosen entries can be read, changed and written back without atomic
// adds.
at::Tensor route_backward(const at::Tensor& scores_grad, const at::Tensor& weights_grad, const at::Tensor& scores,
                          const at::Tensor& experts, const RouterOptions& options) {
  const at::Tensor of_chosen = chosen_grad(scores.gather(1, experts), weights_grad, options);
  const at::Tensor total = scores_grad.scatter(1, experts, scores_grad.gather(1, experts) + of_chosen);
  return at::sigmoid_backward(total, scores);
}

Routing route(const at::Tensor& logits, const at::Tensor& bias, const RouterOptions& options) {
  BRAID_CHECK(logits.dim() == 2 && bias.dim() == 1 && bias.size(0) == logits.size(1), "one bias per expert");
  BRAID_CHECK(options.top_k >= 1 && options.top_k <= logits.size(1), "top_k={} with {} experts", options.top_k,
              logits.size(1));
  Routing routing;
  {
    at::NoGradGuard guard;
    routing = route_forward(logits, bias, options);
  }
  if (!needs_gradient({logits})) return routing;
  const auto backward = [scores = routing.scores.detach(), experts = routing.experts, options,
                         dtype = logits.scalar_type()](const Tensors& grads) {
    return Tensors{route_backward(grads[0], grads[1], scores, experts, options).to(dtype)};
  };
  const Tensors outputs = attach_backward("RouteBackward", {logits}, {routing.scores, routing.weights}, backward);
  return {.scores = outputs[0], .experts = routing.experts, .weights = outputs[1]};
}

}  // namespace braid
