#include "ops/moe.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "base/error.h"
#include "ops/has_kernel.h"
#include "ops/linear.h"
#include "tensor/autograd.h"

namespace braid {

namespace {

// [T, 1]
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
[[maybe_unused]] bool has_logits_kernel(const at::Tensor& x, const at::Tensor& weight) {
  return has_kernel({x}) && has_kernel({weight}) && x.scalar_type() == at::kBFloat16;
}

at::Tensor router_weight_gradient(const at::Tensor& grad, const at::Tensor& x, const Weight& weight) {
  if constexpr (kHasKernels)
    if (has_logits_kernel(x, weight.value) && has_kernel({weight.sum->value})) {
      const auto write = [&](const at::Tensor& sum, bool is_first) {
        cuda::router_logits_weight_grad(grad, x, sum, /*add=*/!is_first);
      };
      if (weight.sum->write_by(write)) return {};
      const at::Tensor result = at::empty_like(weight.value);
      write(result, true);
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
    if (has_kernel({logits, bias}) && cuda::can_route(logits, options.top_k))
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
    if (cuda::can_route(scores, options.top_k))
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

ExpertOrder sort_by_expert(const at::Tensor& experts, std::int64_t num_experts) {
  at::NoGradGuard guard;
  if constexpr (kHasKernels)
    if (experts.is_cuda() && WithoutKernels::count == 0 && cuda::can_sort_by_expert(num_experts))
      return cuda::sort_by_expert(experts, num_experts);
  const at::Tensor flat = experts.reshape(-1);
  // Not bincount, which would make the host wait for the GPU.
  at::Tensor counts = at::zeros({num_experts}, flat.options());
  counts.scatter_add_(0, flat, flat.new_ones(flat.sizes()));
  const at::Tensor order = std::get<1>(at::sort(flat, /*stable=*/true, /*dim=*/0, /*descending=*/false));
  at::Tensor inverse = at::empty_like(order);
  inverse.scatter_(0, order, at::arange(order.numel(), order.options()));
  return {.order = order, .inverse = inverse, .counts = counts, .ends = counts.cumsum(0).to(at::kInt)};
}

at::Tensor permute_to_experts_forward(const at::Tensor& x, const ExpertOrder& order, std::int64_t top_k) {
  if constexpr (kHasKernels)
    if (has_kernel({x})) return cuda::permute_to_experts_forward(x, order, top_k);
  return x.index_select(0, order.order.div(top_k, "floor"));
}

// Gathers through the inverse order: unlike an indexed add, it is deterministic. ATen sums bf16 in fp32.
at::Tensor permute_to_experts_backward(const at::Tensor& grad, const ExpertOrder& order, std::int64_t top_k,
                                       const at::Tensor& added) {
  if constexpr (kHasKernels)
    if (has_kernel({grad, added})) return cuda::permute_to_experts_backward(grad, order, top_k, added);
  const at::Tensor sum = grad.index_select(0, order.inverse).view({grad.size(0) / top_k, top_k, grad.size(1)}).sum(1);
  return added.defined() ? sum + added : sum;
}

namespace {

void check_row_count(std::int64_t rows, const ExpertOrder& order, std::int64_t top_k) {
  BRAID_CHECK_EQ(rows, order.order.numel(), "rows sorted by expert");
  BRAID_CHECK_EQ(rows % top_k, 0, "each token has {} rows", top_k);
}

}  // namespace

at::Tensor permute_to_experts(const at::Tensor& x, const ExpertOrder& order, std::int64_t top_k) {
  check_row_count(x.size(0) * top_k, order, top_k);
  return differentiable(
      "PermuteToExpertsBackward", {x}, [&] { return permute_to_experts_forward(x, order, top_k); },
      [order, top_k](const at::Tensor& grad) { return permute_to_experts_backward(grad, order, top_k); });
}

at::Tensor unpermute_from_experts(const at::Tensor& rows, const ExpertOrder& order, std::int64_t top_k,
                                  const at::Tensor& added) {
  check_row_count(rows.size(0), order, top_k);
  return differentiable(
      "UnpermuteFromExpertsBackward", {rows, added},
      [&] { return permute_to_experts_backward(rows, order, top_k, added); },
      [order, top_k, rows_train = rows.requires_grad()](const at::Tensor& grad) {
        return Tensors{rows_train ? permute_to_experts_forward(grad, order, top_k) : at::Tensor(), grad};
      });
}

at::Tensor weights_by_expert(const at::Tensor& weights, const ExpertOrder& order) {
  return differentiable(
      "WeightsByExpertBackward", {weights}, [&] { return weights.reshape(-1).index_select(0, order.order); },
      [inverse = order.inverse, shape = weights.sizes().vec()](const at::Tensor& grad) {
        return grad.index_select(0, inverse).view(shape);
      });
}

namespace {

// The sample of each of this rank's tokens.
at::Tensor sample_of_tokens(const at::Tensor& scores, const SampleTokens& samples) {
  const at::Tensor own = at::arange(scores.size(0), scores.options().dtype(at::kLong).requires_grad(false));
  return (own + samples.first).floor_divide(samples.length);
}

at::Tensor loss_of(const ExpertShares& shares, double factor) {
  if constexpr (kHasKernels)
    if (has_kernel({shares.sums}) && shares.sums.scalar_type() == at::kFloat) return cuda::aux_loss_of(shares, factor);
  return (shares.sums * shares.chosen).sum() * factor;
}

}  // namespace

ExpertShares expert_shares(const at::Tensor& scores, std::int64_t top_k, const SampleTokens& samples) {
  if constexpr (kHasKernels)
    if (cuda::can_route(scores, top_k)) return cuda::expert_shares(scores, top_k, samples);
  const at::Tensor numbers = at::arange(samples.count, scores.options().dtype(at::kLong)).unsqueeze(1);
  const at::Tensor is_of_sample = (sample_of_tokens(scores, samples) == numbers).to(scores.scalar_type());
  const at::Tensor share = scores / sum_of(scores), best = std::get<1>(share.topk(top_k, 1));
  return {.sums = is_of_sample.matmul(share),
          .chosen = is_of_sample.matmul(at::zeros_like(share).scatter_(1, best, 1))};
}

at::Tensor aux_loss_backward(const at::Tensor& grad, const at::Tensor& scores, const at::Tensor& chosen,
                             const SampleTokens& samples, double factor) {
  if constexpr (kHasKernels)
    if (cuda::can_route(scores, 1)) return cuda::aux_loss_backward(grad, scores, chosen, samples, factor);
  const at::Tensor sum = sum_of(scores);
  const at::Tensor share_grad = (chosen * (grad * factor)).index_select(0, sample_of_tokens(scores, samples));
  return (share_grad - (share_grad * (scores / sum)).sum(1, true)) / sum;
}

at::Tensor aux_loss(const at::Tensor& scores, std::int64_t top_k, const SampleTokens& samples,
                    const std::function<void(at::Tensor& chosen)>& sum_over_ranks) {
  const auto length = static_cast<double>(samples.length);
  const double factor = static_cast<double>(scores.size(1)) /
                        (static_cast<double>(top_k) * (length * length) * static_cast<double>(samples.count));
  const auto forward = [&]() -> OutputAndSaved<at::Tensor> {
    ExpertShares shares = expert_shares(scores, top_k, samples);
    sum_over_ranks(shares.chosen);
    return {.output = loss_of(shares, factor), .saved = shares.chosen};
  };
  return differentiable("AuxLossBackward", {scores}, forward,
                        [scores, samples, factor](const at::Tensor& grad, const at::Tensor& chosen) {
                          return aux_loss_backward(grad, scores, chosen, samples, factor);
                        });
}

}  // namespace braid
