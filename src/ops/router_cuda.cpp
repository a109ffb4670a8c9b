#include "ops/router_cuda.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "kernels/router.h"
#include "kernels/routing.h"
#include "ops/kernel_call.h"

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

bool can_route(std::int64_t experts, std::int64_t top_k) {
  return experts <= kernels::kMaxRoutedExperts && top_k <= kernels::kMaxTopK;
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

}  // namespace braid::cuda
