#include "ops/rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "ops/has_kernel.h"

namespace braid {

namespace {

at::Tensor is_negative(const at::Tensor& numbers) { return (numbers < 0).unsqueeze(1); }

// The numbered rows of x; zeros for negative numbers.
at::Tensor rows_at(const at::Tensor& x, const at::Tensor& numbers) {
  if (x.size(0) == 0) return at::zeros({numbers.size(0), x.size(1)}, x.options());
  return x.index_select(0, numbers.clamp_min(0)).masked_fill_(is_negative(numbers), 0);
}

}  // namespace

at::Tensor put_rows_forward(const at::Tensor& x, const at::Tensor& rows, const at::Tensor& row_of) {
  if constexpr (kHasKernels)
    if (has_kernel({x, rows})) return cuda::put_rows_forward(x, rows, row_of);
  return at::where(is_negative(row_of), x, rows_at(rows, row_of));
}

Tensors put_rows_backward(const at::Tensor& grad, const RowPlaces& places, const PutRowsNeeds& needs) {
  if constexpr (kHasKernels)
    if (has_kernel({grad})) return cuda::put_rows_backward(grad, places, needs);
  return {needs.x_grad ? grad.masked_fill((places.row_of >= 0).unsqueeze(1), 0) : at::Tensor(),
          needs.rows_grad ? rows_at(grad, places.place_of) : at::Tensor()};
}

at::Tensor put_rows(const at::Tensor& x, const at::Tensor& rows, const RowPlaces& places) {
  BRAID_CHECK_EQ(x.size(0), places.row_of.size(0), "places for rows");
  BRAID_CHECK_EQ(rows.size(0), places.place_of.size(0), "rows to put in their places");
  BRAID_CHECK_EQ(x.size(1), rows.size(1), "the width of rows to put in their places");
  const PutRowsNeeds needs = {x.requires_grad(), rows.requires_grad()};
  return differentiable(
      "PutRowsBackward", {x, rows}, [&] { return put_rows_forward(x, rows, places.row_of); },
      [places, needs](const at::Tensor& grad) { return put_rows_backward(grad, places, needs); });
}

namespace {

at::Tensor select_rows_backward(const at::Tensor& grad, const at::Tensor& rows, std::int64_t count) {
  const at::Tensor numbers = at::arange(rows.size(0), rows.options());
  const at::Tensor number_of = at::full({count}, -1, rows.options()).index_copy_(0, rows, numbers);
  // A row of x that was not selected has no place in the gradient, and gets zeros.
  const RowPlaces places = {.row_of = rows, .place_of = number_of};
  return put_rows_backward(grad, places, {.x_grad = false})[1];
}

}  // namespace

at::Tensor select_rows(const at::Tensor& x, const at::Tensor& rows) {
  return differentiable(
      "SelectRowsBackward", {x}, [&] { return x.index_select(0, rows); },
      [rows, count = x.size(0)](const at::Tensor& grad) { return select_rows_backward(grad, rows, count); });
}

}  // namespace braid
