#pragma once

#include "tensor/autograd.h"

namespace braid {

// Some rows of x, in the order of `rows` ([n] int64), which names none twice.   [T, H] -> [n, H]
at::Tensor select_rows(const at::Tensor& x, const at::Tensor& rows);
at::Tensor select_rows_forward(const at::Tensor& x, const at::Tensor& rows);
// Saved: rows, and how many x has.
at::Tensor select_rows_backward(const at::Tensor& grad, const at::Tensor& rows, std::int64_t count);

}  // namespace braid
