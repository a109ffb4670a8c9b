#include "ops/activation_cuda.h"

#include <ATen/ops/empty_like.h>

#include "kernels/activation.h"
#include "ops/kernel_call.h"

namespace braid::cuda {

at::Tensor squared_relu_forward(const at::Tensor& x) {
  const at::Tensor dense = x.contiguous(), y = at::empty_like(dense);
  call_kernel(x, [&]<class T>(cudaStream_t stream) {
    kernels::squared_relu_forward<T>(data<T>(dense), data<T>(y), x.numel(), stream);
  });
  return y;
}

at::Tensor squared_relu_backward(const at::Tensor& grad, const at::Tensor& x) {
  const at::Tensor dense_grad = grad.contiguous(), dense = x.contiguous(), x_grad = at::empty_like(dense);
  call_kernel(x, [&]<class T>(cudaStream_t stream) {
    kernels::squared_relu_backward<T>(data<T>(dense_grad), data<T>(dense), data<T>(x_grad), x.numel(), stream);
  });
  return x_grad;
}

}  // namespace braid::cuda
