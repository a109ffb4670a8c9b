// The products of the router, bf16 tokens times fp32 or bf16 weights, at the precision of fp32 on tensor cores: an fp32
// number is the sum of three bf16 numbers. The gradient of the tokens is bf16, so it needs only the two largest.
// T tokens, E experts, H features.
#pragma once

#include "kernels/matrix.h"

namespace braid::kernels {

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

}  // namespace braid::kernels
