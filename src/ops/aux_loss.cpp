#include "ops/aux_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros_like.h>

#include "ops/aux_loss_cuda.h"
#include "ops/has_kernel.h"
#include "ops/moe.h"

namespace braid {
namespace {

// The sample of each of this rank's tokens.
at::Tensor sample_of_tokens(const at::Tensor& scores, const SampleTokens& samples) {
  const at::Tensor own = at::arange(scores.size(0), scores.options().dtype(at::kLong).requires_grad(false));
  return (own + samples.first).floor_divide(samples.length);
}

at::Tensor sum_of(const at::Tensor& scores) { return scores.sum(1, true) + kNeverZero; }

at::Tensor loss_of(const ExpertShares& shares, double factor) {
  if constexpr (kHasKernels)
    if (has_kernel({shares.sums}) && shares.sums.scalar_type() == at::kFloat) return cuda::aux_loss_of(shares, factor);
  return (shares.sums * shares.chosen).sum() * factor;
}

}  // namespace

ExpertShares expert_shares(const at::Tensor& scores, std::int64_t top_k, const SampleTokens& samples) {
  if constexpr (kHasKernels)
    if (cuda::has_aux_loss(scores, top_k)) return cuda::expert_shares(scores, top_k, samples);
  const at::Tensor numbers = at::arange(samples.count, scores.options().dtype(at::kLong)).unsqueeze(1);
  const at::Tensor is_of_sample = (sample_of_tokens(scores, samples) == numbers).to(scores.scalar_type());
  const at::Tensor share = scores / sum_of(scores), best = std::get<1>(share.topk(top_k, 1));
  return {.sums = is_of_sample.matmul(share),
          .chosen = is_of_sample.matmul(at::zeros_like(share).scatter_(1, best, 1))};
}

at::Tensor aux_loss_backward(const at::Tensor& grad, const at::Tensor& scores, const at::Tensor& chosen,
                             const SampleTokens& samples, double factor) {
  if constexpr (kHasKernels)
    if (cuda::has_aux_loss(scores, 1)) return cuda::aux_loss_backward(grad, scores, chosen, samples, factor);
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
