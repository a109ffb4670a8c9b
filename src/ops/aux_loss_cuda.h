// The balancing loss by Braid's kernels; see ops/has_kernel.h. All tensors are fp32.
#pragma once

#include "ops/aux_loss.h"

namespace braid::cuda {

bool has_aux_loss(const at::Tensor& scores, std::int64_t top_k);

ExpertShares expert_shares(const at::Tensor& scores, std::int64_t top_k, const SampleTokens& samples);
at::Tensor aux_loss_of(const ExpertShares& shares, double factor);
at::Tensor aux_loss_backward(const at::Tensor& grad, const at::Tensor& scores, const at::Tensor& chosen,
                             const SampleTokens& samples, double factor);

}  // namespace braid::cuda
