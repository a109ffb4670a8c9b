#include "ops/quantize_experts_cuda.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "kernels/quantize.h"
#include "ops/kernel_call.h"
#include "ops/quantize_cuda.h"

namespace braid::cuda {
namespace {

// The forms of `rows` rows of experts.
struct Output {
  Fp8Pair pair;
  at::Tensor partials;
  kernels::QuantizedForms forms;
};
Output empty_groups(std::int64_t rows, const at::Tensor& from, const Fp8Forms& wanted, const Fp8Groups& groups) {
  BRAID_CHECK(from.dim() == 2 && can_quantize(from), "rows of experts in fp8");
  const std::int64_t count = groups.ends.numel(), most = rows + count * (kernels::kGroupMultiple - 1);
  const EmptyForms to = empty_forms({rows, from.size(1)}, from, wanted, round_up(most, kernels::kGroupMultiple));
  kernels::QuantizedForms forms = to.pointers();
  forms.groups = {data<const std::int32_t>(groups.ends), data<const std::int32_t>(groups.padded_ends), count};
  return {to.pair, to.partials, forms};
}

at::Tensor float_scales(const at::Tensor& scale) { return scale.to(at::kFloat).contiguous(); }

}  // namespace

Fp8Pair quantize_groups(const at::Tensor& rows, const Fp8Forms& wanted, const Fp8Groups& groups) {
  const at::Tensor from = aligned_rows(rows);
  const Output to = empty_groups(rows.size(0), from, wanted, groups);
  call_kernel(rows, [&]<class T>(cudaStream_t stream) {
    kernels::quantize(const_matrix<__nv_bfloat16>(from), 1, to.forms, stream);
  });
  return to.pair;
}

Fp8Pair quantize_permuted(const at::Tensor& tokens, const ExpertOrder& order, std::int64_t top_k,
                          const Fp8Forms& wanted, const Fp8Groups& groups) {
  const at::Tensor from = aligned_rows(tokens);
  const Output to = empty_groups(tokens.size(0) * top_k, from, wanted, groups);
  const kernels::TokenOrder of_tokens = {data<const std::int64_t>(order.order), data<const std::int64_t>(order.inverse),
                                         static_cast<int>(top_k)};
  call_kernel(tokens, [&]<class T>(cudaStream_t stream) {
    kernels::quantize_permuted(const_matrix<__nv_bfloat16>(from), of_tokens, to.forms, stream);
  });
  return to.pair;
}

Fp8Pair quantize_scaled_squared_relu(const at::Tensor& x, const at::Tensor& scale, const Fp8Forms& wanted,
                                     const Fp8Groups& groups) {
  const at::Tensor from = aligned_rows(x), scales = float_scales(scale);
  const Output to = empty_groups(x.size(0), from, wanted, groups);
  call_kernel(x, [&]<class T>(cudaStream_t stream) {
    kernels::quantize_scaled_squared_relu(const_matrix<__nv_bfloat16>(from), data<const float>(scales), to.forms,
                                          stream);
  });
  return to.pair;
}

Fp8ScaledGradients quantize_scaled_squared_relu_backward(const at::Tensor& grad, const at::Tensor& x,
                                                         const at::Tensor& scale, const Fp8Forms& wanted,
                                                         bool scale_wants_gradient, const Fp8Groups& groups) {
  const at::Tensor slopes = aligned_rows(grad), from = aligned_rows(x), scales = float_scales(scale);
  const Output to = empty_groups(x.size(0), from, wanted, groups);
  const at::Tensor x_grad = at::empty(x.sizes(), x.options().requires_grad(false));
  const at::Tensor scale_grad = scale_wants_gradient ? at::empty_like(scales) : at::Tensor();
  call_kernel(x, [&]<class T>(cudaStream_t stream) {
    kernels::quantize_scaled_squared_relu_backward(
        const_matrix<__nv_bfloat16>(slopes), const_matrix<__nv_bfloat16>(from), data<const float>(scales),
        data<__nv_bfloat16>(x_grad), data<float>(scale_grad), to.forms, stream);
  });
  return {to.pair, scale_wants_gradient ? scale_grad.to(scale.scalar_type()) : scale_grad};
}

at::Tensor padded_ends(const at::Tensor& ends) {
  const at::Tensor result = at::empty_like(ends);
  call_kernel(ends, [&]<class T>(cudaStream_t stream) {
    kernels::pad_ends(data<const std::int32_t>(ends), ends.numel(), data<std::int32_t>(result), stream);
  });
  return result;
}

}  // namespace braid::cuda
