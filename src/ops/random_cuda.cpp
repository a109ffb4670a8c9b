#include "ops/random_cuda.h"

#include "kernels/random.h"
#include "ops/kernel_call.h"

namespace braid::cuda {

void draw(const at::Tensor& x, const RandomField& field, std::int64_t first, std::int64_t row_step, bool normal,
          double scale) {
  const kernels::RandomRows rows = {field.seed(), field.name_hash(), static_cast<std::uint64_t>(first),
                                    static_cast<std::uint64_t>(row_step)};
  call_kernel(x, [&]<class T>(cudaStream_t stream) { kernels::draw(matrix<T>(x), rows, normal, scale, stream); });
}

}  // namespace braid::cuda
