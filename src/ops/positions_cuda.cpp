#include <ATen/ops/empty.h>

#include "kernels/rotary.h"
#include "ops/kernel_call.h"
#include "ops/positions.h"

namespace braid::cuda {
namespace {

template <class T>
kernels::Heads<T> heads_of(const at::Tensor& x) {  // [T, heads, D]
  return {data<T>(x), x.size(0), x.size(1), x.size(2), x.stride(0), x.stride(1)};
}

}  // namespace

bool has_rotary(std::int64_t width) { return kernels::has_rotary(width); }

at::Tensor rotate(const at::Tensor& x, const at::Tensor& positions, double theta, double direction) {
  const at::Tensor vectors = x.dim() == 3 && x.stride(2) == 1 ? x : x.reshape({x.size(0), -1, x.size(-1)}).contiguous();
  const at::Tensor y = at::empty(vectors.sizes(), x.options()), dense_positions = positions.contiguous();
  call_kernel(x, [&]<class T>(cudaStream_t stream) {
    kernels::rotate<T>(heads_of<const T>(vectors), data<std::int64_t>(dense_positions), theta, direction,
                       heads_of<T>(y), stream);
  });
  return y.view(x.sizes());
}

}  // namespace braid::cuda
