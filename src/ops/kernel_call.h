// Calls of kernels with tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "base/error.h"
#include "kernels/matrix.h"

namespace braid::cuda {

// A tensor's elements as kernels name them: T is float or __nv_bfloat16, an integer, or a struct, which is larger and
// covers several elements.
template <class T>
T* data(const at::Tensor& x) {
  if (!x.defined()) return nullptr;
  BRAID_CHECK(x.is_cuda(), "a kernel needs a tensor in a GPU's memory");
  BRAID_CHECK(sizeof(T) > sizeof(std::int64_t) || x.element_size() == sizeof(T),
              "a kernel needs elements of {} bytes, not {}", sizeof(T), x.element_size());
  return static_cast<T*>(x.data_ptr());
}

// A matrix whose rows are contiguous; x: [rows, columns]
template <class T>
kernels::Matrix<T> matrix(const at::Tensor& x) {
  BRAID_CHECK(x.dim() == 2 && (x.stride(1) == 1 || x.size(1) <= 1), "rows of a matrix must be contiguous");
  return {data<T>(x), x.size(0), x.size(1), x.stride(0)};
}

// The same to be read; an undefined tensor has no data.
template <class T>
kernels::Matrix<const T> const_matrix(const at::Tensor& x) {
  return x.defined() ? matrix<const T>(x) : kernels::Matrix<const T>();
}

// x itself if its rows are contiguous, or a copy; x: [rows, columns] or undefined
inline at::Tensor with_dense_rows(const at::Tensor& x) {
  return !x.defined() || x.stride(1) == 1 || x.size(1) <= 1 ? x : x.contiguous();
}

// x itself if it is contiguous, or a copy; x may be undefined
inline at::Tensor dense(const at::Tensor& x) { return x.defined() ? x.contiguous() : x; }

// fp32 on the device of `like`
inline at::TensorOptions floats(const at::Tensor& like) { return like.options().dtype(at::kFloat); }

// A contiguous parameter, float or bf16; or none
inline kernels::Parameter parameter(const at::Tensor& x) {
  if (!x.defined()) return {};
  return {x.data_ptr(), x.scalar_type() == at::kFloat};
}

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
