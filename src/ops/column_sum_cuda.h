// Column sums by Braid's kernels; see ops/has_kernel.h.
#pragma once

#include <ATen/core/Tensor.h>

namespace braid::cuda {

at::Tensor column_sum(const at::Tensor& x);

}  // namespace braid::cuda
