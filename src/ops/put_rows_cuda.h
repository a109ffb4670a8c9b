// Rows in their places by Braid's kernel; see ops/has_kernel.h.
#pragma once

#include "ops/put_rows.h"

namespace braid::cuda {

at::Tensor put_rows_forward(const at::Tensor& x, const at::Tensor& rows, const at::Tensor& row_of);
Tensors put_rows_backward(const at::Tensor& grad, const RowPlaces& places, const PutRowsNeeds& needs);

}  // namespace braid::cuda
