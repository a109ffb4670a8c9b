#include "ops/random_cuda.h"

#include "kernels/random.h"
#include "ops/kernel_call.h"

namespace braid::cuda {
namespace {

kernels::RandomRows rows_of(const RandomField& field, std::int64_t first, std::int64_t row_step) {
  return {field.seed(), field.name_hash(), static_cast<std::uint64_t>(first), static_cast<std::uint64_t>(row_step)};
}

}  // namespace

void draw_normal(const at::Tensor& x, const RandomField& field, std::int64_t first, std::int64_t row_step,
                 double scale) {
  call_kernel(x, [&]<class T>(cudaStream_t stream) {
    kernels::draw_normal(matrix<T>(x), rows_of(field, first, row_step), scale, stream);
  });
}

void draw_uniform(const at::Tensor& x, const RandomField& field, std::int64_t first, std::int64_t row_step,
                  double scale) {
  call_kernel(x, [&]<class T>(cudaStream_t stream) {
    kernels::draw_uniform(matrix<T>(x), rows_of(field, first, row_step), scale, stream);
  });
}

}  // namespace braid::cuda
