// Matrix products and sums of columns.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/activation.h"

namespace braid {

// a b, plus the bias in every row.   a: [M, K], b: [K, N], each stored by rows or by columns; bias: [N] or undefined
at::Tensor product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias = {});

// The products of several a with the same b, into `result` if it is given. Both may be rows of larger tensors.
// a: [G, M, K] -> [G, M, N]
at::Tensor products(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias = {}, at::Tensor result = {});

// The product and its GELU, in one pass over memory where cuBLAS can: it takes the GELU before it rounds its argument.
struct ProductAndGelu {
  at::Tensor inner, activated;  // a b + bias; gelu(inner)
};
ProductAndGelu product_with_gelu(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias, Activation form);
// a b gelu'(inner), element by element: the gradient of `inner` if a b is that of gelu(inner).   inner: [M, N]
at::Tensor product_times_gelu_slope(const at::Tensor& a, const at::Tensor& b, const at::Tensor& inner, Activation form);

// sum += a b, or sum = a b if it is the first; in the precision of the sum and without a temporary of its size.
void add_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, bool is_first);

// The sum over rows, in fp32 or wider, rounded once: the gradient of a bias.   x: [T, F] -> [F]
at::Tensor column_sum(const at::Tensor& x);

namespace cuda {  // product_cuda.cpp

// Whether Braid calls cuBLAS itself for these: bf16, in a GPU's memory, not empty, rows or columns contiguous and
// aligned.
bool has_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias);
bool has_sum_of_products(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);
decltype(braid::product) product;
decltype(braid::add_product) add_product;
decltype(braid::column_sum) column_sum;
// In the tanh form; undefined if cuBLAS cannot do it.
ProductAndGelu product_with_gelu(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias);
at::Tensor product_times_gelu_slope(const at::Tensor& a, const at::Tensor& b, const at::Tensor& inner);

}  // namespace cuda
}  // namespace braid
