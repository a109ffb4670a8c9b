#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "kernels/mamba.h"
#include "ops/causal_conv.h"
#include "ops/kernel_call.h"

namespace braid::cuda {
namespace {

kernels::ConvFilter filter_of(const at::Tensor& weight, const at::Tensor& bias) {
  return {parameter(weight), parameter(bias), static_cast<int>(weight.size(1))};
}

at::Tensor gradient_of(const at::Tensor& x) { return x.defined() ? at::empty_like(x) : x; }

}  // namespace

bool has_causal_conv(std::int64_t taps) { return kernels::has_causal_conv(taps); }

at::Tensor causal_conv_silu_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                    const PackedSequences& sequences) {
  const at::Tensor rows = with_dense_rows(x), y = at::empty(x.sizes(), x.options());
  const at::Tensor dense_weight = dense(weight), dense_bias = dense(bias);
  call_kernel(x, [&]<class T>(cudaStream_t stream) {
    kernels::causal_conv_silu_forward<T>(matrix<const T>(rows), filter_of(dense_weight, dense_bias),
                                         data<std::int64_t>(sequences.position_of), matrix<T>(y), stream);
  });
  return y;
}

Tensors causal_conv_silu_backward_into(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                                       const at::Tensor& bias, const PackedSequences& sequences,
                                       const at::Tensor& x_grad) {
  const at::Tensor grad_rows = with_dense_rows(grad), rows = with_dense_rows(x);
  const at::Tensor dense_weight = dense(weight), dense_bias = dense(bias);
  const at::Tensor weight_grad = gradient_of(dense_weight), bias_grad = gradient_of(dense_bias);
  const at::Tensor partials =
      at::empty({kernels::causal_conv_partials(x.size(0)), weight.numel() + x.size(1)}, x.options().dtype(at::kFloat));
  call_kernel(x, [&]<class T>(cudaStream_t stream) {
    kernels::causal_conv_silu_backward<T>(matrix<const T>(grad_rows), matrix<const T>(rows),
                                          filter_of(dense_weight, dense_bias),
                                          data<std::int64_t>(sequences.position_of), matrix<T>(x_grad),
                                          data<float>(partials), filter_of(weight_grad, bias_grad), stream);
  });
  return {weight_grad, bias_grad};
}

}  // namespace braid::cuda
