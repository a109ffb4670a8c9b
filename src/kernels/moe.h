// A mixture of experts around its products (kernels/grouped_product.h): the router, the choice of experts and the loss
// that balances it, and the rows of tokens in the order of their experts. T tokens choose k of E experts each: slot
// t * k + j is the j-th choice of token t, R = T * k slots in all. H features.
#pragma once

#include "kernels/matrix.h"

namespace braid::kernels {

// The products of the router, bf16 tokens times fp32 or bf16 weights, at the precision of fp32 on tensor cores: an fp32
// number is the sum of three bf16 numbers. The gradient of the tokens is bf16, so it needs only the two largest.
using Tokens = Matrix<const __nv_bfloat16>;  // [T, H]

// logits = x weight^T.   weight: [E, H], logits: [T, E]
template <class W>
void router_logits(Tokens x, const W* weight, int experts, float* logits, cudaStream_t stream);

// The gradients that the other users of x have for it, [T, H]; those without data do not count.
constexpr int kMostAdded = 2;
struct AddedGradients {
  Tokens of_users[kMostAdded];
};
// x_grad = grad weight + the added gradients, rounded once.   grad: [T, E], x_grad: [T, H] with contiguous rows
template <class W>
void router_logits_x_grad(const float* grad, const W* weight, int experts, const AddedGradients& added,
                          Matrix<__nv_bfloat16> x_grad, cudaStream_t stream);

// grad^T x, written to weight_grad, or added to it.   weight_grad: [E, H]
// partials: scratch of [router_token_parts(T, H, E), E, H]
std::int64_t router_token_parts(std::int64_t tokens, std::int64_t columns, int experts);
template <class W>
void router_logits_weight_grad(const float* grad, Tokens x, int experts, float* partials, W* weight_grad, bool add,
                               cudaStream_t stream);

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

inline constexpr std::int64_t kMaxSortedExperts = 1024;

struct SortedSlots {
  std::int64_t *order = nullptr, *inverse = nullptr;  // [R] the slot of each row, and the row of each slot
  std::int64_t* counts = nullptr;                     // [E]
  std::int32_t* ends = nullptr;                       // [E] one past the last row of each expert
};

// The stable sort of slots by expert. block_counts: scratch of [sort_blocks(slots), num_experts]
std::int64_t sort_blocks(std::int64_t slots);
void sort_by_expert(const std::int64_t* experts, std::int64_t slots, int num_experts, std::int32_t* block_counts,
                    const SortedSlots& sorted, cudaStream_t stream);

// rows[inverse[t * k + j]] = x[t].   rows: [R, H]
template <class T>
void permute_to_experts(Matrix<const T> x, const std::int64_t* inverse, int top_k, T* rows, cudaStream_t stream);
// y[t] = the sum over j of rows[inverse[t * k + j]], plus added[t] if there is such a matrix; rounded once.
template <class T>
void unpermute_from_experts(const T* rows, const std::int64_t* inverse, int top_k, Matrix<const T> added, Matrix<T> y,
                            cudaStream_t stream);

// The gradients of experts' weights after a grouped product, which may leave those of experts without rows undefined.

// `size` elements for each expert; expert e has rows ends[e - 1] to ends[e].
struct ExpertWeights {
  const std::int32_t* ends = nullptr;
  std::int64_t experts = 0, size = 0;
};

// grad = 0 for experts without rows.
void clear_gradients(const ExpertWeights& weights, __nv_bfloat16* grad, cudaStream_t stream);

}  // namespace braid::kernels
