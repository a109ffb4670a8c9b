#pragma once

#include "ops/product.h"

namespace braid::cuda {

// Whether Braid calls cuBLAS itself for these: bf16, in a GPU's memory, not empty, rows or columns
// contiguous and aligned.
bool has_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias);
bool has_sum_of_products(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);

at::Tensor product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias);
void add_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, bool is_first);

// As in ops/product.h, in the tanh form; undefined if cuBLAS cannot do it.
ProductAndGelu product_with_gelu(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias);
at::Tensor product_times_gelu_slope(const at::Tensor& a, const at::Tensor& b, const at::Tensor& inner);

}  // namespace braid::cuda
