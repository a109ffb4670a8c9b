#include "ops/moe.h"
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include "base/error.h"
#include "kernels/moe.h"
#include "ops/has_kernel.h"
#include "ops/linear.h"

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
bool has_logits_kernel(const at::Tensor& x, const at::Tensor& weight) {
  return has_kernel({x}) && has_kernel({weight}) && x.scalar_type() == at::kBFloat16;
}

bool can_route(const at::Tensor& scores, std::int64_t top_k) {
  return has_kernel({scores}) && scores.scalar_type() == at::kFloat && scores.size(1) <= kernels::kMaxRoutedExperts &&
         top_k <= kernels::kMaxTopK;
}

kernels::RouteWeights kernel_weights(const RouterOptions& options) {
  return {static_cast<float>(options.scaling), options.normalize, static_cast<float>(kNeverZero)};
}

kernels::Samples kernel_samples(const SampleTokens& samples) { return {samples.first, samples.length, samples.count}; }

at::Tensor router_weight_gradient(const at::Tensor& grad, const at::Tensor& x, const Weight& weight) {
  if (has_logits_kernel(x, weight.value) && has_kernel({weight.sum->value})) {
    const auto write = [&](const at::Tensor& sum, bool is_first) {
      call<kernels::router_logits_weight_grad>(grad.contiguous(), with_dense_rows(x), sum, /*add=*/!is_first);
    };
    if (weight.sum->write_by(write)) return {};
    const at::Tensor result = weight.value.new_empty(weight.value.sizes());
    write(result, true);
    return result;
  }
  const at::Tensor wide = widen(x);
  const auto write = [&](const at::Tensor& sum, bool is_first) { add_weight_gradient(grad, wide, sum, is_first); };
  if (weight.sum->write_by(write)) return {};
  return grad.t().mm(wide).to(weight.value.scalar_type());
}

at::Tensor router_x_gradient(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                             const Tensors& added) {
  if (has_logits_kernel(x, weight)) {
    BRAID_CHECK(added.size() <= kernels::kMostAdded, "gradients of {} other users of a router's tokens", added.size());
    Tensors dense_added(kernels::kMostAdded);
    std::transform(added.begin(), added.end(), dense_added.begin(), with_dense_rows);
    return fill<kernels::router_logits_x_grad>(x.new_empty(x.sizes()), grad.contiguous(), weight.contiguous(),
                                               dense_added[0], dense_added[1]);
  }
  at::Tensor sum = grad.mm(widen(weight));
  for (const at::Tensor& other : added) sum += other;
  return sum.to(x.scalar_type());
}

void check_row_count(std::int64_t rows, const ExpertOrder& order, std::int64_t top_k) {
  BRAID_CHECK_EQ(rows, order.order.numel(), "rows sorted by expert");
  BRAID_CHECK_EQ(rows % top_k, 0, "each token has {} rows", top_k);
}

// The sample of each of this rank's tokens.
at::Tensor sample_of_tokens(const at::Tensor& scores, const SampleTokens& samples) {
  const at::Tensor own = at::arange(scores.size(0), scores.options().dtype(at::kLong).requires_grad(false));
  return (own + samples.first).floor_divide(samples.length);
}

at::Tensor loss_of(const ExpertShares& shares, double factor) {
  if (has_kernel({shares.sums}) && shares.sums.scalar_type() == at::kFloat)
    return fill<kernels::scaled_dot>(shares.sums.new_empty({}), shares.sums, shares.chosen, factor);
  return (shares.sums * shares.chosen).sum() * factor;
}

// libtorch's grouped product needs bf16 on a GPU, at least one row, and strides that are multiples of 16 bytes.
bool has_grouped_kernel(const at::Tensor& rows, const at::Tensor& matrices) {
  const bool aligned = matrices.size(1) % 8 == 0 && matrices.size(2) % 8 == 0;
  return rows.is_cuda() && rows.scalar_type() == at::kBFloat16 && rows.size(0) > 0 && aligned;
}

bool is_aligned(const at::Tensor& x) { return reinterpret_cast<std::uintptr_t>(x.data_ptr()) % 16 == 0; }

// x itself or a copy.   x: [R, columns]
at::Tensor with_aligned_rows(const at::Tensor& x) {
  if (is_aligned(x) && x.stride(1) == 1 && x.stride(0) % 8 == 0 && x.stride(0) >= x.size(1)) return x;
  const at::Tensor dense = x.contiguous();
  return is_aligned(dense) ? dense : dense.clone();
}

bool are_bf16_rows(const at::Tensor& rows) { return rows.scalar_type() == at::kBFloat16 && rows.size(0) > 0; }

// Braid's own grouped products need no counts on the host.
bool has_row_kernel(const at::Tensor& rows, const at::Tensor& weight) {
  return has_kernel({rows, weight}) && are_bf16_rows(rows) && fits_grouped_kernels(weight);
}

bool has_gradient_kernel(const at::Tensor& grad, const at::Tensor& rows, const at::Tensor& result, bool overwrite) {
  return has_kernel({grad, rows}) && are_bf16_rows(rows) && takes_expert_gradients(result, overwrite);
}

template <class Visit>
void for_each_expert(const ExpertRows& experts, Visit visit) {  // visit(expert, begin, count)
  std::int64_t begin = 0, expert = 0;
  for (const std::int64_t count : experts.counts()) {
    visit(expert++, begin, count);
    begin += count;
  }
}

// Each expert's rows times weight[e], or its transpose.
// rows: [R, Out], weight: [E, Out, In] -> [R, In]; transposed, rows: [R, In] -> [R, Out]
at::Tensor multiply_rows(const at::Tensor& rows, const at::Tensor& weight, bool transposed, const ExpertRows& experts) {
  if (has_row_kernel(rows, weight))
    return fill<kernels::multiply_rows>(rows.new_empty({rows.size(0), weight.size(transposed ? 1 : 2)}),
                                        with_aligned_rows(rows), experts.ends(), weight, transposed);
  const at::Tensor matrices = transposed ? weight.transpose(1, 2) : weight;
  if (has_grouped_kernel(rows, matrices)) return at::_grouped_mm(rows.contiguous(), matrices, experts.ends());
  at::Tensor result = at::empty({rows.size(0), matrices.size(2)}, rows.options());
  for_each_expert(experts, [&](std::int64_t expert, std::int64_t begin, std::int64_t count) {
    if (count == 0) return;
    at::Tensor part = result.narrow(0, begin, count);
    at::mm_out(part, rows.narrow(0, begin, count), matrices.select(0, expert));
  });
  return result;
}

// Without a kernel, one product per expert: libtorch's grouped product rounds its result and cannot add it to a sum.
// grad: [R, Out], rows: [R, In], sum: [E, Out, In]
void write_weight_gradients(const at::Tensor& grad, const at::Tensor& rows, const at::Tensor& sum, bool is_first,
                            const ExpertRows& experts) {
  if (has_gradient_kernel(grad, rows, sum, is_first)) {
    call<kernels::multiply_columns>(with_aligned_rows(grad), with_aligned_rows(rows), experts.ends(), sum, is_first);
    return;
  }
  for_each_expert(experts, [&](std::int64_t expert, std::int64_t begin, std::int64_t count) {
    const at::Tensor slice = sum.select(0, expert);
    if (count > 0)
      add_weight_gradient(grad.narrow(0, begin, count), rows.narrow(0, begin, count), slice, is_first);
    else if (is_first)
      slice.zero_();
  });
}

at::Tensor weight_gradient(const at::Tensor& grad, const at::Tensor& rows, const Weight& weight,
                           const ExpertRows& experts) {
  const auto write = [&](const at::Tensor& sum, bool is_first) {
    write_weight_gradients(grad, rows, sum, is_first, experts);
  };
  if (weight.sum->write_by(write, weight.gradient_parts)) return {};
  const at::Tensor result = at::empty(weight.value.sizes(), weight.value.options().requires_grad(false));
  if (kHasKernels && !has_gradient_kernel(grad, rows, result, true) && has_grouped_kernel(rows, weight.value)) {
    const at::Tensor rounded = at::_grouped_mm(grad.t(), rows.contiguous(), experts.ends());
    clear_expert_gradients(experts, rounded);
    return rounded;
  }
  write_weight_gradients(grad, rows, result, /*is_first=*/true, experts);
  return result;
}

}  // namespace

at::Tensor router_logits_forward(const at::Tensor& x, const at::Tensor& weight) {
  if (has_logits_kernel(x, weight))
    return fill<kernels::router_logits>(x.new_empty({x.size(0), weight.size(0)}, at::kFloat), with_dense_rows(x),
                                        weight.contiguous());
  return at::linear(widen(x), widen(weight));
}

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
  if (has_kernel({logits, bias}) && can_route(logits, options.top_k)) {
    const std::vector<std::int64_t> chosen = {logits.size(0), options.top_k};
    const Routing routing = {.scores = logits.new_empty(logits.sizes()),
                             .experts = logits.new_empty(chosen, at::kLong),
                             .weights = logits.new_empty(chosen)};
    call<kernels::route>(logits.contiguous(), bias.contiguous(), kernel_weights(options), routing.scores,
                         routing.experts, routing.weights);
    return routing;
  }
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
  if (can_route(scores, options.top_k))
    return fill<kernels::route_backward>(scores.new_empty(scores.sizes()), scores_grad.contiguous(),
                                         weights_grad.contiguous(), scores, experts, kernel_weights(options));
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
  const at::Tensor flat = experts.reshape(-1);
  if (kHasKernels && experts.is_cuda() && WithoutKernels::count == 0 && num_experts <= kernels::kMaxSortedExperts) {
    const ExpertOrder sorted = {.order = flat.new_empty(flat.sizes()),
                                .inverse = flat.new_empty(flat.sizes()),
                                .counts = flat.new_empty({num_experts}),
                                .ends = flat.new_empty({num_experts}, at::kInt)};
    call<kernels::sort_by_expert>(flat.contiguous(), sorted.order, sorted.inverse, sorted.counts, sorted.ends);
    return sorted;
  }
  // Not bincount, which would make the host wait for the GPU.
  at::Tensor counts = at::zeros({num_experts}, flat.options());
  counts.scatter_add_(0, flat, flat.new_ones(flat.sizes()));
  const at::Tensor order = std::get<1>(at::sort(flat, /*stable=*/true, /*dim=*/0, /*descending=*/false));
  at::Tensor inverse = at::empty_like(order);
  inverse.scatter_(0, order, at::arange(order.numel(), order.options()));
  return {.order = order, .inverse = inverse, .counts = counts, .ends = counts.cumsum(0).to(at::kInt)};
}

at::Tensor permute_to_experts_forward(const at::Tensor& x, const ExpertOrder& order, std::int64_t top_k) {
  if (has_kernel({x}))
    return fill<kernels::permute_to_experts>(x.new_empty({x.size(0) * top_k, x.size(1)}), with_dense_rows(x),
                                             order.inverse, top_k);
  return x.index_select(0, order.order.div(top_k, "floor"));
}

// Gathers through the inverse order: unlike an indexed add, it is deterministic. ATen sums bf16 in fp32.
at::Tensor permute_to_experts_backward(const at::Tensor& grad, const ExpertOrder& order, std::int64_t top_k,
                                       const at::Tensor& added) {
  if (has_kernel({grad, added}))
    return fill<kernels::unpermute_from_experts>(grad.new_empty({grad.size(0) / top_k, grad.size(1)}),
                                                 grad.contiguous(), order.inverse, top_k, with_dense_rows(added));
  const at::Tensor sum = grad.index_select(0, order.inverse).view({grad.size(0) / top_k, top_k, grad.size(1)}).sum(1);
  return added.defined() ? sum + added : sum;
}

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

ExpertShares expert_shares(const at::Tensor& scores, std::int64_t top_k, const SampleTokens& samples) {
  if (can_route(scores, top_k)) {
    const at::Tensor sums =
        fill<kernels::expert_shares>(scores.new_empty({2, samples.count, scores.size(1)}), scores.contiguous(), top_k,
                                     kernel_samples(samples), kNeverZero);
    return {.sums = sums.select(0, 0), .chosen = sums.select(0, 1)};
  }
  const at::Tensor numbers = at::arange(samples.count, scores.options().dtype(at::kLong)).unsqueeze(1);
  const at::Tensor is_of_sample = (sample_of_tokens(scores, samples) == numbers).to(scores.scalar_type());
  const at::Tensor share = scores / sum_of(scores), best = std::get<1>(share.topk(top_k, 1));
  return {.sums = is_of_sample.matmul(share),
          .chosen = is_of_sample.matmul(at::zeros_like(share).scatter_(1, best, 1))};
}

at::Tensor aux_loss_backward(const at::Tensor& grad, const at::Tensor& scores, const at::Tensor& chosen,
                             const SampleTokens& samples, double factor) {
  if (can_route(scores, 1))
    return fill<kernels::expert_shares_backward>(scores.new_empty(scores.sizes()), grad, chosen, scores.contiguous(),
                                                 kernel_samples(samples), factor, kNeverZero);
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

void ExpertRows::prefetch() const {
  if (!on_host() && !host_->ends) host_->ends.emplace(ends_);
}

const std::vector<std::int64_t>& ExpertRows::counts() const {
  if (on_host()) return *host_->counts;
  prefetch();
  const at::Tensor& ends = host_->ends->get();
  std::vector<std::int64_t>& counts = host_->counts.emplace(ends.numel());
  std::adjacent_difference(ends.data_ptr<int>(), ends.data_ptr<int>() + ends.numel(), counts.begin());
  return counts;
}

bool fits_grouped_kernels(const at::Tensor& x) {
  return x.numel() > 0 && x.size(1) % 8 == 0 && x.size(2) % 8 == 0 && x.is_contiguous() && is_aligned(x) &&
         ask<kernels::has_grouped_products>(x.device());
}

bool takes_expert_gradients(const at::Tensor& x, bool overwrite) {
  return (x.scalar_type() == at::kFloat || (overwrite && x.scalar_type() == at::kBFloat16)) && fits_grouped_kernels(x);
}

void clear_expert_gradients(const ExpertRows& experts, const at::Tensor& grad) {
  BRAID_CHECK(grad.is_contiguous(), "gradients of experts must be contiguous");
  call<kernels::clear_gradients>(experts.ends(), grad);
}

at::Tensor grouped_linear_forward(const at::Tensor& rows, const at::Tensor& weight, const ExpertRows& experts) {
  return multiply_rows(rows, weight, /*transposed=*/true, experts);
}

Tensors grouped_linear_backward(const at::Tensor& grad, const at::Tensor& rows, const Weight& weight,
                                const ExpertRows& experts, bool rows_want_gradient) {
  const at::Tensor dense = grad.contiguous();
  return {rows_want_gradient ? multiply_rows(dense, weight.value, /*transposed=*/false, experts) : at::Tensor(),
          rows.defined() ? weight_gradient(dense, rows, weight, experts) : at::Tensor()};
}

void check_grouped_linear(const at::Tensor& rows, const at::Tensor& weight, const ExpertRows& experts) {
  BRAID_CHECK(rows.dim() == 2 && weight.dim() == 3 && rows.size(1) == weight.size(2),
              "rows and weights must have the same inner width");
  BRAID_CHECK_EQ(experts.ends().numel(), weight.size(0), "a row count per expert");
  if (!experts.on_host()) return;
  const std::vector<std::int64_t>& counts = experts.counts();
  const auto total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  BRAID_CHECK_EQ(total, rows.size(0), "rows of all experts");
}

at::Tensor grouped_linear(const Recomputable& input, const Weight& weight, const ExpertRows& experts, Result result) {
  const at::Tensor &rows = input.value, &matrices = weight.value;
  check_grouped_linear(rows, matrices, experts);
  if (weight.sum->value.defined() && needs_gradient({matrices}) && !has_row_kernel(rows, matrices)) experts.prefetch();
  return differentiable(
      "GroupedLinearBackward", {rows, matrices},
      [&] {
        return result == Result::Needed ? grouped_linear_forward(rows, matrices, experts)
                                        : rows.new_empty({rows.size(0), matrices.size(1)});
      },
      [saved = input.saved_if(matrices.requires_grad()), weight, experts, rows_train = rows.requires_grad()](
          const at::Tensor& grad) { return grouped_linear_backward(grad, saved(), weight, experts, rows_train); });
}

}  // namespace braid
