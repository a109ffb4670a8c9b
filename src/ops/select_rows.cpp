#include "ops/select_rows.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>

#include "ops/put_rows.h"

namespace braid {

at::Tensor select_rows_forward(const at::Tensor& x, const at::Tensor& rows) { return x.index_select(0, rows); }

at::Tensor select_rows_backward(const at::Tensor& grad, const at::Tensor& rows, std::int64_t count) {
  const at::Tensor numbers = at::arange(rows.size(0), rows.options());
  const at::Tensor number_of = at::full({count}, -1, rows.options()).index_copy_(0, rows, numbers);
  // A row of x that was not selected has no place in the gradient, and gets zeros.
  const RowPlaces places = {.row_of = rows, .place_of = number_of};
  return put_rows_backward(grad, places, {.x_grad = false})[1];
}

at::Tensor select_rows(const at::Tensor& x, const at::Tensor& rows) {
  return differentiable(
      "SelectRowsBackward", {x}, [&] { return select_rows_forward(x, rows); },
      [rows, count = x.size(0)](const at::Tensor& grad) { return select_rows_backward(grad, rows, count); });
}

}  // namespace braid
