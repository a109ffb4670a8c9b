#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/sort.h>

#include "base/error.h"
#include "ops/has_kernel.h"
#include "ops/linear.h"
#include "ops/moe.h"
#include "ops/router_cuda.h"
#include "ops/widen.h"

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

// fp32 tokens need no kernel: libtorch multiplies them without copies.
bool has_logits_kernel(const at::Tensor& x, const at::Tensor& weight) {
  return has_kernel({x}) && has_kernel({weight}) && x.scalar_type() == at::kBFloat16;
}

[[maybe_unused]] bool has_weight_gradient_kernel(const at::Tensor& x, const Weight& weight) {
  return has_logits_kernel(x, weight.value) && has_kernel({weight.sum->value});
}

[[maybe_unused]] bool has_route_kernel(const at::Tensor& scores, std::int64_t top_k) {
  if constexpr (kHasKernels)
    return has_kernel({scores}) && scores.scalar_type() == at::kFloat && cuda::can_route(scores.size(1), top_k);
  return false;
}

at::Tensor router_weight_gradient(const at::Tensor& grad, const at::Tensor& x, const Weight& weight) {
  if constexpr (kHasKernels)
    if (has_weight_gradient_kernel(x, weight)) {
      const auto write = [&](const at::Tensor& sum, bool is_first) {
        cuda::router_logits_weight_grad(grad, x, sum, /*add=*/!is_first);
      };
      if (weight.sum->write_by(write)) return {};
      const at::Tensor result = at::empty_like(weight.value);
      cuda::router_logits_weight_grad(grad, x, result, /*add=*/false);
      return result;
    }
  const at::Tensor wide = widen(x);
  const auto write = [&](const at::Tensor& sum, bool is_first) { add_weight_gradient(grad, wide, sum, is_first); };
  if (weight.sum->write_by(write)) return {};
  return grad.t().mm(wide).to(weight.value.scalar_type());
}

}  // namespace

at::Tensor router_logits_forward(const at::Tensor& x, const at::Tensor& weight) {
  if constexpr (kHasKernels)
    if (has_logits_kernel(x, weight)) return cuda::router_logits_forward(x, weight);
  return at::linear(widen(x), widen(weight));
}

namespace {

at::Tensor router_x_gradient(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                             const Tensors& added) {
  if constexpr (kHasKernels)
    if (has_logits_kernel(x, weight)) return cuda::router_logits_x_grad(grad, x, weight, added);
  at::Tensor sum = grad.mm(widen(weight));
  for (const at::Tensor& other : added) sum += other;
  return sum.to(x.scalar_type());
}

}  // namespace

Tensors router_logits_backward(const at::Tensor& grad, const at::Tensor& x, const Weight& weight, bool x_wants_gradient,
                               const Tensors& added) {
  return {x_wants_gradient ? router_x_gradient(grad, x, weight.value, added) : at::Tensor(),
          weight.value.requires_grad() ? router_weight_gradient(grad, x, weight) : at::Tensor()};
}

LogitsAndTokens router_logits_and_tokens(const Recomputable& input, const Weight& weight, std::size_t other_users) {
  const at::Tensor& x = input.value;
  BRAID_CHECK(x.dim() == 2 && weight.value.dim() == 2 && x.size(1) == weight.value.size(1),
              "tokens and router must have the same width");
  const at::Tensor logits = [&] {
    at::NoGradGuard guard;
    return router_logits_forward(x, weight.value);
  }();
  if (!needs_gradient({x, weight.value})) return {logits, Tensors(other_users, x)};
  const bool x_trains = x.requires_grad();
  const auto backward = [saved = input.saved_if(true), weight, x_trains](const Tensors& grads) {
    return router_logits_backward(grads[0], saved(), weight, x_trains, {grads.begin() + 1, grads.end()});
  };
  Tensors outputs = {logits};
  for (std::size_t i = 0; x_trains && i < other_users; ++i) outputs.push_back(x.detach());
  outputs = attach_backward("RouterLogitsBackward", {x, weight.value}, outputs, backward);
  return {outputs[0], x_trains ? Tensors(outputs.begin() + 1, outputs.end()) : Tensors(other_users, x)};
}

at::Tensor router_logits(const Recomputable& x, const Weight& weight) {
  return router_logits_and_tokens(x, weight, 0).logits;
}

Routing route_forward(const at::Tensor& logits, const at::Tensor& bias, const RouterOptions& options) {
  if constexpr (kHasKernels)
    if (has_kernel({logits, bias}) && has_route_kernel(logits, options.top_k))
      return cuda::route_forward(logits, bias, options);
  const at::Tensor scores = widen(logits).sigmoid();
  // A stable sort, because topk leaves the order of ties to the device.
  const at::Tensor order = std::get<1>(at::sort(scores + bias, /*stable=*/true, /*dim=*/1, /*descending=*/true));
  const at::Tensor experts = order.narrow(1, 0, options.top_k).contiguous();
  return {.scores = scores, .experts = experts, .weights = weights_of(scores.gather(1, experts), options)};
}

// A token chooses an expert at most once, so the chosen entries can be read, changed and written back without atomic
// adds.
at::Tensor route_backward(const at::Tensor& scores_grad, const at::Tensor& weights_grad, const at::Tensor& scores,
                          const at::Tensor& experts, const RouterOptions& options) {
  if constexpr (kHasKernels)
    if (has_route_kernel(scores, options.top_k))
      return cuda::route_backward(scores_grad, weights_grad, scores, experts, options);
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
