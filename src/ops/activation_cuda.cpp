#include "ops/activation_cuda.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "kernels/activation.h"
#include "kernels/row_activation.h"
#include "ops/kernel_call.h"

namespace braid::cuda {
namespace {

// What call(x, y, count, stream), or call(grad, x, y, count, stream), writes to y; all dense and of x's shape.
template <class Call>
at::Tensor mapped(const at::Tensor& x, const Call& call) {
  const at::Tensor dense = x.contiguous(), y = at::empty_like(dense);
  call_kernel(x, [&]<class T>(cudaStream_t stream) { call(data<const T>(dense), data<T>(y), x.numel(), stream); });
  return y;
}

template <class Call>
at::Tensor mapped(const at::Tensor& grad, const at::Tensor& x, const Call& call) {
  const at::Tensor dense_grad = grad.contiguous(), dense = x.contiguous(), x_grad = at::empty_like(dense);
  call_kernel(x, [&]<class T>(cudaStream_t stream) {
    call(data<const T>(dense_grad), data<const T>(dense), data<T>(x_grad), x.numel(), stream);
  });
  return x_grad;
}

at::Tensor rows_like(const at::Tensor& x, std::int64_t columns) {
  return at::empty({x.size(0), columns}, x.options().requires_grad(false));
}

kernels::RowScales row_scales(const at::Tensor& scales, const at::Tensor& places) {
  return {data<const float>(scales), data<const std::int64_t>(places)};
}

}  // namespace

at::Tensor squared_relu_forward(const at::Tensor& x) {
  return mapped(x, [](auto... arguments) { kernels::squared_relu_forward(arguments...); });
}

at::Tensor squared_relu_backward(const at::Tensor& grad, const at::Tensor& x) {
  return mapped(grad, x, [](auto... arguments) { kernels::squared_relu_backward(arguments...); });
}

at::Tensor gelu_forward(const at::Tensor& x, bool tanh) {
  return mapped(x, [=](auto from, auto to, std::int64_t count, cudaStream_t stream) {
    kernels::gelu_forward(from, to, count, tanh, stream);
  });
}

at::Tensor gelu_backward(const at::Tensor& grad, const at::Tensor& x, bool tanh) {
  return mapped(grad, x, [=](auto slope, auto from, auto to, std::int64_t count, cudaStream_t stream) {
    kernels::gelu_backward(slope, from, to, count, tanh, stream);
  });
}

at::Tensor quick_gelu_forward(const at::Tensor& x) {
  return mapped(x, [](auto... arguments) { kernels::quick_gelu_forward(arguments...); });
}

at::Tensor quick_gelu_backward(const at::Tensor& grad, const at::Tensor& x) {
  return mapped(grad, x, [](auto... arguments) { kernels::quick_gelu_backward(arguments...); });
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
