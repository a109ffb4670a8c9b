#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "kernels/moe.h"
#include "ops/has_kernel.h"
#include "ops/kernel_call.h"
#include "ops/moe.h"

namespace braid::cuda {

namespace {

kernels::RouteSizes sizes_of(const at::Tensor& scores, std::int64_t top_k) {
  return {scores.size(0), static_cast<int>(scores.size(1)), static_cast<int>(top_k)};
}

kernels::RouteWeights weights_of(const RouterOptions& options) {
  return {static_cast<float>(options.scaling), options.normalize, static_cast<float>(kNeverZero)};
}

}  // namespace

at::Tensor router_logits_forward(const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor dense = with_dense_rows(x), dense_weight = weight.contiguous();
  const at::Tensor logits = at::empty({x.size(0), weight.size(0)}, floats(x));
  call_kernel(weight, [&]<class W>(cudaStream_t stream) {
    kernels::router_logits<W>(matrix<const __nv_bfloat16>(dense), data<W>(dense_weight),
                              static_cast<int>(weight.size(0)), data<float>(logits), stream);
  });
  return logits;
}

at::Tensor router_logits_x_grad(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                                const Tensors& added) {
  BRAID_CHECK(added.size() <= kernels::kMostAdded, "gradients of {} other users of a router's tokens", added.size());
  const at::Tensor dense = grad.contiguous(), dense_weight = weight.contiguous();
  const at::Tensor x_grad = at::empty(x.sizes(), x.options().requires_grad(false));
  Tensors dense_added;
  kernels::AddedGradients others;
  for (const at::Tensor& other : added) {
    dense_added.push_back(with_dense_rows(other));
    others.of_users[dense_added.size() - 1] = matrix<const __nv_bfloat16>(dense_added.back());
  }
  call_kernel(weight, [&]<class W>(cudaStream_t stream) {
    kernels::router_logits_x_grad<W>(data<float>(dense), data<W>(dense_weight), static_cast<int>(weight.size(0)),
                                     others, matrix<__nv_bfloat16>(x_grad), stream);
  });
  return x_grad;
}

void router_logits_weight_grad(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& sum, bool add) {
  const at::Tensor dense = grad.contiguous(), dense_x = with_dense_rows(x);
  const std::int64_t parts = kernels::router_token_parts(x.size(0), x.size(1), static_cast<int>(sum.size(0)));
  const at::Tensor partials = at::empty({parts, sum.size(0), sum.size(1)}, floats(x));
  call_kernel(sum, [&]<class W>(cudaStream_t stream) {
    kernels::router_logits_weight_grad<W>(data<float>(dense), matrix<const __nv_bfloat16>(dense_x),
                                          static_cast<int>(sum.size(0)), data<float>(partials), data<W>(sum), add,
                                          stream);
  });
}

bool can_route(const at::Tensor& scores, std::int64_t top_k) {
  return has_kernel({scores}) && scores.scalar_type() == at::kFloat && scores.size(1) <= kernels::kMaxRoutedExperts &&
         top_k <= kernels::kMaxTopK;
}

Routing route_forward(const at::Tensor& logits, const at::Tensor& bias, const RouterOptions& options) {
  const at::Tensor dense = logits.contiguous(), dense_bias = bias.contiguous();
  const std::int64_t tokens = logits.size(0);
  const Routing routing = {.scores = at::empty_like(dense, floats(dense)),
                           .experts = at::empty({tokens, options.top_k}, floats(dense).dtype(at::kLong)),
                           .weights = at::empty({tokens, options.top_k}, floats(dense))};
  call_kernel(logits, [&]<class T>(cudaStream_t stream) {
    kernels::route(data<float>(dense), data<float>(dense_bias), sizes_of(dense, options.top_k), weights_of(options),
                   data<float>(routing.scores), data<std::int64_t>(routing.experts), data<float>(routing.weights),
                   stream);
  });
  return routing;
}

at::Tensor route_backward(const at::Tensor& scores_grad, const at::Tensor& weights_grad, const at::Tensor& scores,
                          const at::Tensor& experts, const RouterOptions& options) {
  const at::Tensor of_scores = scores_grad.contiguous(), of_weights = weights_grad.contiguous();
  const at::Tensor logits_grad = at::empty_like(scores);
  call_kernel(scores, [&]<class T>(cudaStream_t stream) {
    kernels::route_backward(data<float>(of_scores), data<float>(of_weights), data<float>(scores),
                            data<std::int64_t>(experts), sizes_of(scores, options.top_k), weights_of(options),
                            data<float>(logits_grad), stream);
  });
  return logits_grad;
}

bool can_sort_by_expert(std::int64_t num_experts) { return num_experts <= kernels::kMaxSortedExperts; }

ExpertOrder sort_by_expert(const at::Tensor& experts, std::int64_t num_experts) {
  const at::Tensor flat = experts.reshape(-1).contiguous();
  const std::int64_t slots = flat.numel();
  const auto integers = [&](at::IntArrayRef shape, at::ScalarType dtype) {
    return at::empty(shape, flat.options().dtype(dtype));
  };
  const ExpertOrder order = {.order = integers({slots}, at::kLong),
                             .inverse = integers({slots}, at::kLong),
                             .counts = integers({num_experts}, at::kLong),
                             .ends = integers({num_experts}, at::kInt)};
  const at::Tensor block_counts = integers({kernels::sort_blocks(slots), num_experts}, at::kInt);
  const c10::cuda::CUDAGuard guard(flat.device());
  kernels::sort_by_expert(data<std::int64_t>(flat), slots, static_cast<int>(num_experts),
                          data<std::int32_t>(block_counts),
                          {.order = data<std::int64_t>(order.order),
                           .inverse = data<std::int64_t>(order.inverse),
                           .counts = data<std::int64_t>(order.counts),
                           .ends = data<std::int32_t>(order.ends)},
                          c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return order;
}

at::Tensor permute_to_experts_forward(const at::Tensor& x, const ExpertOrder& order, std::int64_t top_k) {
  const at::Tensor dense = with_dense_rows(x), rows = at::empty({x.size(0) * top_k, x.size(1)}, x.options());
  call_kernel(x, [&]<class T>(cudaStream_t stream) {
    kernels::permute_to_experts<T>(matrix<const T>(dense), data<std::int64_t>(order.inverse), static_cast<int>(top_k),
                                   data<T>(rows), stream);
  });
  return rows;
}

at::Tensor permute_to_experts_backward(const at::Tensor& grad, const ExpertOrder& order, std::int64_t top_k,
                                       const at::Tensor& added) {
  const at::Tensor dense = grad.contiguous(), y = at::empty({grad.size(0) / top_k, grad.size(1)}, grad.options());
  const at::Tensor dense_added = with_dense_rows(added);
  call_kernel(grad, [&]<class T>(cudaStream_t stream) {
    kernels::unpermute_from_experts<T>(data<T>(dense), data<std::int64_t>(order.inverse), static_cast<int>(top_k),
                                       const_matrix<T>(dense_added), matrix<T>(y), stream);
  });
  return y;
}

namespace {

kernels::Samples samples_of(const SampleTokens& samples) { return {samples.first, samples.length, samples.count}; }

}  // namespace

ExpertShares expert_shares(const at::Tensor& scores, std::int64_t top_k, const SampleTokens& samples) {
  const at::Tensor dense = scores.contiguous();
  const std::int64_t experts = scores.size(1),
                     chunks = kernels::expert_share_chunks(samples_of(samples), dense.size(0));
  const at::Tensor partials = at::empty({chunks, 2, samples.count, experts}, floats(scores));
  const at::Tensor sums = at::empty({2, samples.count, experts}, floats(scores));
  call_kernel(scores, [&]<class T>(cudaStream_t stream) {
    kernels::expert_shares(data<float>(dense), sizes_of(dense, top_k), samples_of(samples),
                           static_cast<float>(kNeverZero), data<float>(partials), data<float>(sums), stream);
  });
  return {.sums = sums.select(0, 0), .chosen = sums.select(0, 1)};
}

at::Tensor aux_loss_of(const ExpertShares& shares, double factor) {
  const at::Tensor loss = at::empty({}, floats(shares.sums));
  call_kernel(loss, [&]<class T>(cudaStream_t stream) {
    kernels::scaled_dot(data<float>(shares.sums), data<float>(shares.chosen), shares.sums.numel(),
                        static_cast<float>(factor), data<float>(loss), stream);
  });
  return loss;
}

at::Tensor aux_loss_backward(const at::Tensor& grad, const at::Tensor& scores, const at::Tensor& chosen,
                             const SampleTokens& samples, double factor) {
  const at::Tensor dense = scores.contiguous(), scores_grad = at::empty_like(dense, floats(scores));
  call_kernel(scores, [&]<class T>(cudaStream_t stream) {
    kernels::expert_shares_backward(data<float>(grad), data<float>(chosen), data<float>(dense), sizes_of(dense, 0),
                                    samples_of(samples), static_cast<float>(factor), static_cast<float>(kNeverZero),
                                    data<float>(scores_grad), stream);
  });
  return scores_grad;
}

}  // namespace braid::cuda
