// The choice between ATen's operators and Braid's kernels (src/kernels), which a CUDA build has for float and bf16. An
// operator's functions look like this; without kernels the call is not compiled, so that nothing is to be linked:
//
//   at::Tensor x_forward(const at::Tensor& x) {
//     if constexpr (kHasKernels)
//       if (has_kernel({x})) return cuda::x_forward(x);
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <initializer_list>

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
  if (WithoutKernels::count > 0) return false;
  at::ScalarType dtype = at::ScalarType::Undefined;
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& x) {
    if (!x.defined()) return true;
    if (dtype == at::ScalarType::Undefined) dtype = x.scalar_type();
    return x.is_cuda() && x.scalar_type() == dtype && (dtype == at::kFloat || dtype == at::kBFloat16);
  });
}

}  // namespace braid
