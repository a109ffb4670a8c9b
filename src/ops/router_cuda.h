// The router by Braid's kernels; see ops/has_kernel.h.
#pragma once

#include "ops/moe.h"

namespace braid::cuda {

// x: bf16, weight: bf16 or fp32
at::Tensor router_logits_forward(const at::Tensor& x, const at::Tensor& weight);
// Adds the tensors `added`, at most two.
at::Tensor router_logits_x_grad(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                                const Tensors& added);
// Adds to `sum`, fp32 or bf16, or overwrites it.
void router_logits_weight_grad(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& sum, bool add);

// All tensors are fp32.
bool can_route(std::int64_t experts, std::int64_t top_k);
Routing route_forward(const at::Tensor& logits, const at::Tensor& bias, const RouterOptions& options);
at::Tensor route_backward(const at::Tensor& scores_grad, const at::Tensor& weights_grad, const at::Tensor& scores,
                          const at::Tensor& experts, const RouterOptions& options);

}  // namespace braid::cuda
