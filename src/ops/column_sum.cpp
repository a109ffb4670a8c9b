#include "ops/column_sum.h"

#include <ATen/ops/sum.h>

#include "ops/column_sum_cuda.h"
#include "ops/has_kernel.h"

namespace braid {

at::Tensor column_sum(const at::Tensor& x) {
  if constexpr (kHasKernels)
    if (has_kernel({x})) return cuda::column_sum(x);
  return x.sum(0);
}

}  // namespace braid
