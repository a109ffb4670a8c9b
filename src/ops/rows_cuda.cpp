#include <ATen/ops/empty.h>

#include "kernels/embedding.h"
#include "ops/kernel_call.h"
#include "ops/rows.h"

namespace braid::cuda {

namespace {

// Row i is there[numbers[i]], or elsewhere[i] where the number is negative; of an undefined tensor, zeros.
at::Tensor pick_rows(const at::Tensor& numbers, const at::Tensor& there, const at::Tensor& elsewhere) {
  const at::Tensor dense_numbers = numbers.contiguous(), numbered = with_dense_rows(there),
                   others = with_dense_rows(elsewhere);
  const at::Tensor& like = there.defined() ? there : elsewhere;
  const at::Tensor y = at::empty({numbers.size(0), like.size(1)}, like.options().requires_grad(false));
  call_kernel(like, [&]<class T>(cudaStream_t stream) {
    kernels::pick_rows(data<const std::int64_t>(dense_numbers), const_matrix<T>(numbered), const_matrix<T>(others),
                       matrix<T>(y), stream);
  });
  return y;
}

}  // namespace

at::Tensor put_rows_forward(const at::Tensor& x, const at::Tensor& rows, const at::Tensor& row_of) {
  return pick_rows(row_of, rows, x);
}

Tensors put_rows_backward(const at::Tensor& grad, const RowPlaces& places, const PutRowsNeeds& needs) {
  return {needs.x_grad ? pick_rows(places.row_of, {}, grad) : at::Tensor(),
          needs.rows_grad ? pick_rows(places.place_of, grad, {}) : at::Tensor()};
}

}  // namespace braid::cuda
