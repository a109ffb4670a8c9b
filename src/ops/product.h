#pragma once

#include <ATen/core/Tensor.h>

namespace braid {

// a b, plus the bias in every row.   a: [M, K], b: [K, N], each stored by rows or by columns; bias: [N] or undefined
at::Tensor product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias = {});

// sum += a b, or sum = a b if it is the first; in the precision of the sum and without a temporary of its size.
void add_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, bool is_first);

}  // namespace braid
