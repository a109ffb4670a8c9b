#include "ops/column_sum_cuda.h"

#include <ATen/ops/empty.h>

#include "kernels/column_sum.h"
#include "ops/kernel_call.h"

namespace braid::cuda {

at::Tensor column_sum(const at::Tensor& x) {
  const auto options = x.options().requires_grad(false);
  const at::Tensor rows = with_dense_rows(x), sums = at::empty({x.size(1)}, options);
  const std::int64_t count = kernels::column_sum_partials(x.size(0), x.size(1));
  const at::Tensor partials = at::empty({count, x.size(1)}, options.dtype(at::kFloat));
  call_kernel(x, [&]<class T>(cudaStream_t stream) {
    kernels::column_sum(const_matrix<T>(rows), data<float>(partials), data<T>(sums), stream);
  });
  return sums;
}

}  // namespace braid::cuda
