#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "kernels/activation.h"
#include "ops/activation.h"
#include "ops/kernel_call.h"

namespace braid::cuda {
namespace {

kernels::Activation kernel_of(Activation kind) { return static_cast<kernels::Activation>(kind); }
static_assert(static_cast<int>(kernels::Activation::QuickGelu) == static_cast<int>(Activation::QuickGelu));

at::Tensor rows_like(const at::Tensor& x, std::int64_t columns) {
  return at::empty({x.size(0), columns}, x.options().requires_grad(false));
}

kernels::RowScales row_scales(const at::Tensor& scales, const at::Tensor& places) {
  return {data<const float>(scales), data<const std::int64_t>(places)};
}

}  // namespace

at::Tensor activation_forward(const at::Tensor& x, Activation kind) {
  const at::Tensor dense = x.contiguous(), y = at::empty_like(dense);
  call_kernel(x, [&]<class T>(cudaStream_t stream) {
    kernels::activation_forward(data<const T>(dense), data<T>(y), x.numel(), kernel_of(kind), stream);
  });
  return y;
}

at::Tensor activation_backward(const at::Tensor& grad, const at::Tensor& x, Activation kind) {
  const at::Tensor dense_grad = grad.contiguous(), dense = x.contiguous(), x_grad = at::empty_like(dense);
  call_kernel(x, [&]<class T>(cudaStream_t stream) {
    kernels::activation_backward(data<const T>(dense_grad), data<const T>(dense), data<T>(x_grad), x.numel(),
                                 kernel_of(kind), stream);
  });
  return x_grad;
}

at::Tensor scaled_squared_relu_forward(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& places) {
  const at::Tensor rows = with_dense_rows(x), scales = scale.to(at::kFloat).contiguous(), y = rows_like(x, x.size(1));
  call_kernel(x, [&]<class T>(cudaStream_t stream) {
    kernels::scaled_squared_relu_forward(const_matrix<T>(rows), row_scales(scales, places), data<T>(y), stream);
  });
  return y;
}

Tensors scaled_squared_relu_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& scale,
                                     const ScaledNeeds& needs, const at::Tensor& places) {
  const at::Tensor rows = with_dense_rows(x), slopes = with_dense_rows(grad),
                   scales = scale.to(at::kFloat).contiguous();
  at::Tensor x_grad, scale_grad;
  if (needs.x_grad) x_grad = rows_like(x, x.size(1));
  if (needs.scale_grad) scale_grad = at::empty_like(scales, at::TensorOptions().requires_grad(false));
  call_kernel(x, [&]<class T>(cudaStream_t stream) {
    kernels::scaled_squared_relu_backward(const_matrix<T>(slopes), const_matrix<T>(rows), row_scales(scales, places),
                                          data<T>(x_grad), data<float>(scale_grad), stream);
  });
  return {x_grad, scale_grad.defined() ? scale_grad.to(scale.scalar_type()) : scale_grad};
}

at::Tensor swiglu_forward(const at::Tensor& x) {
  const at::Tensor rows = with_dense_rows(x), y = rows_like(x, x.size(1) / 2);
  call_kernel(
      x, [&]<class T>(cudaStream_t stream) { kernels::swiglu_forward(const_matrix<T>(rows), data<T>(y), stream); });
  return y;
}

at::Tensor swiglu_backward(const at::Tensor& grad, const at::Tensor& x) {
  const at::Tensor rows = with_dense_rows(x), slopes = with_dense_rows(grad), x_grad = rows_like(x, x.size(1));
  call_kernel(x, [&]<class T>(cudaStream_t stream) {
    kernels::swiglu_backward(const_matrix<T>(slopes), const_matrix<T>(rows), data<T>(x_grad), stream);
  });
  return x_grad;
}

}  // namespace braid::cuda
