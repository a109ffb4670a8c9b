#include "ops/quantize_experts.h"

#include "ops/has_kernel.h"
#include "ops/quantize_cuda.h"
#include "ops/quantize_experts_cuda.h"

namespace braid {

Fp8Groups fp8_groups(const at::Tensor& ends, [[maybe_unused]] const Tensors& like) {
  if constexpr (kHasKernels) {
    const auto has = [](const at::Tensor& x) { return has_kernel({x}) && cuda::can_quantize(x); };
    if (std::all_of(like.begin(), like.end(), has)) return {ends, cuda::padded_ends(ends)};
  }
  return {ends, {}};
}

Fp8Pair quantize_groups(const at::Tensor& rows, const Fp8Forms& wanted, const Fp8Groups& groups) {
  if constexpr (kHasKernels)
    if (groups.padded_ends.defined()) return cuda::quantize_groups(rows, wanted, groups);
  return quantize(rows, wanted);
}

Fp8Pair quantize_permuted(const at::Tensor& tokens, const ExpertOrder& order, std::int64_t top_k,
                          const Fp8Forms& wanted, const Fp8Groups& groups) {
  if constexpr (kHasKernels)
    if (groups.padded_ends.defined()) return cuda::quantize_permuted(tokens, order, top_k, wanted, groups);
  return quantize_groups(permute_to_experts_forward(tokens, order, top_k), wanted, groups);
}

Fp8Pair quantize_scaled_squared_relu(const at::Tensor& x, const at::Tensor& scale, const Fp8Forms& wanted,
                                     const Fp8Groups& groups) {
  if constexpr (kHasKernels)
    if (groups.padded_ends.defined()) return cuda::quantize_scaled_squared_relu(x, scale, wanted, groups);
  return quantize_groups(scaled_squared_relu_forward(x, scale), wanted, groups);
}

Fp8ScaledGradients quantize_scaled_squared_relu_backward(const at::Tensor& grad, const at::Tensor& x,
                                                         const at::Tensor& scale, const Fp8Forms& wanted,
                                                         bool scale_wants_gradient, const Fp8Groups& groups) {
  const bool x_wants_gradient = wanted.rows || wanted.columns;
  if constexpr (kHasKernels)
    if (groups.padded_ends.defined() && x_wants_gradient)
      return cuda::quantize_scaled_squared_relu_backward(grad, x, scale, wanted, scale_wants_gradient, groups);
  const Tensors grads = scaled_squared_relu_backward(grad, x, scale, {x_wants_gradient, scale_wants_gradient});
  return {x_wants_gradient ? quantize_groups(grads[0], wanted, groups) : Fp8Pair(), grads[1]};
}

}  // namespace braid
