// Calls of kernels with tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "base/error.h"
#include "kernels/matrix.h"

namespace braid::cuda {

// A tensor's elements as kernels name them: T is float or __nv_bfloat16, or an integer.
template <class T>
T* data(const at::Tensor& x) {
  return x.defined() ? static_cast<T*>(x.data_ptr()) : nullptr;
}

// A matrix whose rows are contiguous; x: [rows, columns]
template <class T>
kernels::Matrix<T> matrix(const at::Tensor& x) {
  BRAID_CHECK(x.dim() == 2 && (x.stride(1) == 1 || x.size(1) <= 1), "rows of a matrix must be contiguous");
  return {data<T>(x), x.size(0), x.size(1), x.stride(0)};
}

// x itself if its rows are contiguous, columns of a wider matrix included.
inline at::Tensor with_dense_rows(const at::Tensor& x) { return x.stride(1) == 1 ? x : x.contiguous(); }

// call.operator()<T>(stream) with T for the dtype of `like`, on its device and current stream.
template <class Call>
void call_kernel(const at::Tensor& like, const Call& call) {
  const c10::cuda::CUDAGuard guard(like.device());
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  if (like.scalar_type() == at::kFloat)
    call.template operator()<float>(stream);
  else
    call.template operator()<__nv_bfloat16>(stream);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace braid::cuda
