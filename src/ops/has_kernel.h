// The choice between ATen's operators and Braid's kernels (src/kernels), which a CUDA build has for float and bf16, and
// calls of these with tensors. An operator's functions look like this:
//
//   at::Tensor x_forward(const at::Tensor& x) {
//     if (has_kernel({x})) return fill<kernels::x_forward>(x.new_empty(x.sizes()), x);
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include "base/error.h"
#include "kernels/tensor.h"

namespace braid {

#ifndef BRAID_HAS_KERNELS
#error "A file that includes ops/has_kernel.h must be listed in braid_uses_cuda()"
#endif
inline constexpr bool kHasKernels = BRAID_HAS_KERNELS;

// While one lives, every thread takes ATen's operators: for comparisons.
class WithoutKernels {
 public:
  WithoutKernels() { ++count; }
  ~WithoutKernels() { --count; }
  WithoutKernels(const WithoutKernels&) = delete;
  WithoutKernels& operator=(const WithoutKernels&) = delete;

  static inline std::atomic<int> count = 0;
};

// Whether all of them, those defined, are on a GPU and have one dtype that kernels know.
inline bool has_kernel(std::initializer_list<at::Tensor> tensors) {
  if (!kHasKernels || WithoutKernels::count > 0) return false;
  at::ScalarType dtype = at::ScalarType::Undefined;
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& x) {
    if (!x.defined()) return true;
    if (dtype == at::ScalarType::Undefined) dtype = x.scalar_type();
    return x.is_cuda() && x.scalar_type() == dtype && (dtype == at::kFloat || dtype == at::kBFloat16);
  });
}

// x as kernels see it; an undefined tensor has no data.
inline kernels::Tensor kernel_tensor(const at::Tensor& x) {
  if (!x.defined()) return {};
  BRAID_CHECK(x.is_cuda() && x.dim() <= kernels::Tensor::kMostDims,
              "a kernel was given a tensor on {} with {} dimensions", x.device().str(), x.dim());
  kernels::Tensor result = {x.data_ptr(), x.element_size(), x.scalar_type() == at::kFloat, static_cast<int>(x.dim())};
  std::copy_n(x.sizes().begin(), result.dims, result.sizes);
  std::copy_n(x.strides().begin(), result.dims, result.strides);
  return result;
}

// A device and its current stream, while kernels are queued on it.
class KernelQueue {
 public:
  explicit KernelQueue(const at::Device& device);
  KernelQueue(const KernelQueue&) = delete;
  operator const kernels::Queue&() const { return queue_; }
  void check_launch() const;  // throws if a kernel could not be queued

 private:
  c10::DeviceGuard guard_;
  std::vector<at::Tensor> scratch_;
  kernels::Queue queue_;
};

template <class T>
decltype(auto) kernel_argument(const T& x) {
  if constexpr (std::is_same_v<T, at::Tensor>)
    return kernel_tensor(x);
  else
    return (x);
}

// kFunction(arguments..., queue) on the device. Without kernels, when it must not be reached, it is not linked.
template <auto kFunction, bool kExists = kHasKernels, class... Arguments>
auto call_on(const at::Device& device, const Arguments&... arguments) {
  using Result = decltype(kFunction(kernel_argument(arguments)..., std::declval<const kernels::Queue&>()));
  if constexpr (!kExists) {
    return Result();
  } else if constexpr (std::is_void_v<Result>) {
    const KernelQueue queue(device);
    kFunction(kernel_argument(arguments)..., queue);
    queue.check_launch();
  } else {
    const KernelQueue queue(device);
    const Result result = kFunction(kernel_argument(arguments)..., queue);
    queue.check_launch();
    return result;
  }
}

template <auto kFunction, class... Arguments>
void call(const at::Tensor& first, const Arguments&... others) {
  call_on<kFunction>(first.device(), first, others...);
}

// `result`, which kFunction(inputs..., result, queue) fills.
template <auto kFunction, class... Inputs>
at::Tensor fill(const at::Tensor& result, const Inputs&... inputs) {
  call_on<kFunction>(result.device(), inputs..., result);
  return result;
}

// kFunction(arguments...), which queues nothing, on the device.
template <auto kFunction, bool kExists = kHasKernels, class... Arguments>
auto ask(const at::Device& device, const Arguments&... arguments) {
  if constexpr (kExists) {
    const c10::DeviceGuard guard(device);
    return kFunction(kernel_argument(arguments)...);
  } else {
    return decltype(kFunction(kernel_argument(arguments)...))();
  }
}

// x itself if its rows are contiguous, or a copy; x: [rows, columns] or undefined
inline at::Tensor with_dense_rows(const at::Tensor& x) {
  return !x.defined() || x.stride(1) == 1 || x.size(1) <= 1 ? x : x.contiguous();
}

// x itself if it is contiguous, or a copy; x may be undefined
inline at::Tensor dense(const at::Tensor& x) { return x.defined() ? x.contiguous() : x; }

}  // namespace braid
