// The loss that balances the load of experts within each sample.
#pragma once

#include <cstdint>
#include <functional>

#include "tensor/autograd.h"

namespace braid {

// `count` samples of `length` tokens each. A rank holds some of these tokens, starting at token `first`.
struct SampleTokens {
  std::int64_t first = 0, length = 0, count = 0;
};

// With the shares of a token its scores divided by their sum, of each sample and expert:
struct ExpertShares {
  at::Tensor sums;    // [samples, E] the shares, summed over this rank's tokens
  at::Tensor chosen;  // [samples, E] how many of this rank's tokens have the expert among their top k
};
ExpertShares expert_shares(const at::Tensor& scores, std::int64_t top_k, const SampleTokens& samples);

// E / (k length^2 count) times the sum over samples and experts of sums * chosen, where `chosen` covers the tokens of
// all ranks: sum_over_ranks adds it up in place. Balanced routing gives 1 on all ranks together.
// scores: [T, E], fp32 or wider
at::Tensor aux_loss(const at::Tensor& scores, std::int64_t top_k, const SampleTokens& samples,
                    const std::function<void(at::Tensor& chosen)>& sum_over_ranks);
// Gradient of the scores; `chosen` is that of all ranks. Saved: scores and chosen.
at::Tensor aux_loss_backward(const at::Tensor& grad, const at::Tensor& scores, const at::Tensor& chosen,
                             const SampleTokens& samples, double factor);

}  // namespace braid
