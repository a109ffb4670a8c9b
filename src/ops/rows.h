#pragma once

#include "tensor/autograd.h"

namespace braid {

// Where rows of one matrix ([N, H]) replace rows of another ([T, H]).
struct RowPlaces {
  at::Tensor row_of;    // [T] int64: the row that comes to a place; negative: the place keeps its own
  at::Tensor place_of;  // [N] int64: the inverse, the place of a row; negative: it has none
};

// x with `rows` in their places.   [T, H], [N, H] -> [T, H]
at::Tensor put_rows(const at::Tensor& x, const at::Tensor& rows, const RowPlaces& places);
at::Tensor put_rows_forward(const at::Tensor& x, const at::Tensor& rows, const at::Tensor& row_of);
// Saved: places, and which of the two gradients are needed; the others are undefined.
struct PutRowsNeeds {
  bool x_grad = true, rows_grad = true;
};
Tensors put_rows_backward(const at::Tensor& grad, const RowPlaces& places, const PutRowsNeeds& needs);

// Some rows of x, in the order of `rows` ([n] int64), which names none twice.   [T, H] -> [n, H]
at::Tensor select_rows(const at::Tensor& x, const at::Tensor& rows);

namespace cuda {  // rows_cuda.cpp

decltype(braid::put_rows_forward) put_rows_forward;
decltype(braid::put_rows_backward) put_rows_backward;

}  // namespace cuda
}  // namespace braid
