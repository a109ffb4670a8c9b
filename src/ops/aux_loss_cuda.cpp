#include "ops/aux_loss_cuda.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "kernels/routing.h"
#include "ops/has_kernel.h"
#include "ops/kernel_call.h"
#include "ops/moe.h"
#include "ops/router_cuda.h"

namespace braid::cuda {
namespace {

kernels::RouteSizes sizes_of(const at::Tensor& scores, std::int64_t top_k) {
  return {scores.size(0), static_cast<int>(scores.size(1)), static_cast<int>(top_k)};
}

kernels::Samples samples_of(const SampleTokens& samples) { return {samples.first, samples.length, samples.count}; }

}  // namespace

bool has_aux_loss(const at::Tensor& scores, std::int64_t top_k) {
  return has_kernel({scores}) && scores.scalar_type() == at::kFloat && can_route(scores.size(1), top_k);
}

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
