#pragma once

#include "kernels/matrix.h"

namespace braid::kernels {

// Matrices in e4m3 (fp8: 3 bits of mantissa, up to 448) with a scale for each row: an element is its value times the
// scale of its row, which is the row's largest magnitude over 448. A row whose magnitudes are all below 1e-30 is zero
// and has the scale 1. Values are rounded to the nearest.
struct Quantized {
  std::uint8_t* values = nullptr;
  float* scales = nullptr;
};

// In a transposed matrix of experts' rows each expert begins at a multiple of this.
inline constexpr std::int64_t kGroupMultiple = 32;

// Rows of experts: those of expert e end at ends[e]. In a transposed matrix the gap before the next expert is filled
// with zeros; there they end at padded_ends[e].
struct RowGroups {
  const std::int32_t *ends = nullptr, *padded_ends = nullptr;
  std::int64_t count = 0;  // 0: all rows are one group
};

// The padded ends of `count` groups.
void pad_ends(const std::int32_t* ends, std::int64_t count, std::int32_t* padded_ends, cudaStream_t stream);

inline constexpr std::int64_t kMostQuantizedColumns = 32768;

// Elements of scratch that column scales need, for rows as they are in memory.
std::int64_t quantize_partials(std::int64_t rows, std::int64_t columns, std::int64_t batches);

// The forms of a matrix [R, C]. Either may have no values. In all functions below rows in memory are aligned to 16
// bytes, C is a multiple of 8 and at most kMostQuantizedColumns.
struct QuantizedForms {
  Quantized rows;           // values [R, C], scales [R]
  Quantized columns;        // transposed: values [C, length], zero from R on, scales [C]
  std::int64_t length = 0;  // a multiple of 16, and large enough for the groups' padding
  RowGroups groups{};
  __nv_bfloat16* partials = nullptr;
};

// x holds `batches` matrices of equal size, one below the other: [batches * R, C]. If there are several, R is a
// multiple of 16. Forms follow each other in the same way: columns are [batches, C, length].
void quantize(Matrix<const __nv_bfloat16> x, std::int64_t batches, const QuantizedForms& forms, cudaStream_t stream);

// The rows of tokens in the order of their experts (kernels/moe.h): row r is x[order[r] / k]. Every token is
// converted once.   x: [T, C], R = T * k
struct TokenOrder {
  const std::int64_t *order = nullptr, *inverse = nullptr;
  int top_k = 1;
};
void quantize_permuted(Matrix<const __nv_bfloat16> x, const TokenOrder& order, const QuantizedForms& forms,
                       cudaStream_t stream);

// max(x, 0)^2 * scale[row], rounded to bf16 and then to fp8.
void quantize_scaled_squared_relu(Matrix<const __nv_bfloat16> x, const float* scale, const QuantizedForms& forms,
                                  cudaStream_t stream);
// x_grad = 2 max(x, 0) grad scale, rounded to bf16 (dense, scratch for the columns) and then to fp8;
// scale_grad[row] = the row's sum of max(x, 0)^2 grad, which may be null.
void quantize_scaled_squared_relu_backward(Matrix<const __nv_bfloat16> grad, Matrix<const __nv_bfloat16> x,
                                           const float* scale, __nv_bfloat16* x_grad, float* scale_grad,
                                           const QuantizedForms& forms, cudaStream_t stream);

}  // namespace braid::kernels
