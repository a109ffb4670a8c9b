// The choice of experts and the loss that balances it. T tokens, E experts, k chosen per token.
#pragma once

#include "kernels/matrix.h"

namespace braid::kernels {

inline constexpr std::int64_t kMaxRoutedExperts = 512, kMaxTopK = 32;

struct RouteSizes {
  std::int64_t tokens = 0;
  int experts = 0, top_k = 0;
};

struct RouteWeights {
  float scaling = 1;
  bool normalize = true;
  float never_zero = 0;  // is added to a sum of scores that divides
};

// scores = sigmoid(logits); the top_k of scores + bias, best first, equals by index; their scores, divided by their sum
// if `normalize`, times `scaling`.   scores: [T, E], experts and weights: [T, k]
void route(const float* logits, const float* bias, RouteSizes sizes, RouteWeights options, float* scores,
           std::int64_t* experts, float* weights, cudaStream_t stream);
void route_backward(const float* scores_grad, const float* weights_grad, const float* scores,
                    const std::int64_t* experts, RouteSizes sizes, RouteWeights options, float* logits_grad,
                    cudaStream_t stream);

// The tokens of these kernels are a part of `count` samples of `length` tokens each, and begin with token `first`.
struct Samples {
  std::int64_t first = 0, length = 0, count = 0;
};

// With the shares of a token its scores divided by their sum: for each sample and expert the sum of its tokens' shares,
// and how many of its tokens have the expert among their top_k.   sums: [2, samples, E], first shares, then counts
// partials: scratch of [expert_share_chunks(...), 2, samples, E]
std::int64_t expert_share_chunks(const Samples& samples, std::int64_t tokens);
void expert_shares(const float* scores, RouteSizes sizes, Samples samples, float never_zero, float* partials,
                   float* sums, cudaStream_t stream);
// result[0] = factor times the sum over `count` elements of a * b.
void scaled_dot(const float* a, const float* b, std::int64_t count, float factor, float* result, cudaStream_t stream);
// The gradient of scores if that of a share is chosen[sample, expert] * factor * grad[0].
void expert_shares_backward(const float* grad, const float* chosen, const float* scores, RouteSizes sizes,
                            Samples samples, float factor, float never_zero, float* scores_grad, cudaStream_t stream);

}  // namespace braid::kernels
