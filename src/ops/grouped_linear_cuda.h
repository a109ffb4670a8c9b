// The products of experts by Braid's kernels; see ops/has_kernel.h.
#pragma once

#include "ops/quantize.h"

namespace braid::cuda {

// Kernels for these products exist: bf16 on a Hopper GPU, at least one row, and sizes in multiples of 16 bytes.
bool has_row_products(const at::Tensor& rows, const at::Tensor& weight);
// Those of a gradient exist, too: it is float, or bf16 and only written.
bool has_gradient_products(const at::Tensor& grad, const at::Tensor& rows, const at::Tensor& result, bool overwrite);

// The rows of each expert e times weight[e], or its transpose.
// ends: [E] int32, rows: [R, Out], weight: [E, Out, In] -> [R, In]; transposed, rows: [R, In] -> [R, Out]
at::Tensor multiply_rows(const at::Tensor& ends, const at::Tensor& rows, const at::Tensor& weight, bool transposed);

// grad^T rows of each expert, added to the result or written over it.
// ends: [E] int32, grad: [R, Out], rows: [R, In], result: [E, Out, In]
void write_expert_gradients(const at::Tensor& ends, const at::Tensor& grad, const at::Tensor& rows,
                            const at::Tensor& result, bool overwrite);

// The same in fp8, for outputs with fast sums, for gradients with precise ones. The columns of a gradient's factors are
// the experts' rows, with padding (ops/quantize_experts.h).
// rows: [R, K], weight: [E, N, K] -> [R, N] bf16;   grad: [Out, R], rows: [In, R], result: [E, Out, In]
bool has_row_products(const Fp8Matrix& rows, const Fp8Matrix& weight);
bool has_gradient_products(const Fp8Matrix& grad, const Fp8Matrix& rows, const at::Tensor& result, bool overwrite);
at::Tensor multiply_rows(const at::Tensor& ends, const Fp8Matrix& rows, const Fp8Matrix& weight);
void write_expert_gradients(const at::Tensor& padded_ends, const Fp8Matrix& grad, const Fp8Matrix& rows,
                            const at::Tensor& result, bool overwrite);

// grad = 0 for experts without rows.   ends: [E] int32, grad: [E, Out, In] bf16
void clear_expert_gradients(const at::Tensor& ends, const at::Tensor& grad);

}  // namespace braid::cuda
