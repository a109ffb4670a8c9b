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

// Rows of experts: those of expert e end at ends[e]. In a transposed matrix the next expert begins at a multiple of 16,
// and the gap is filled with zeros; there they end at padded_ends[e].
struct RowGroups {
  const std::int32_t *ends = nullptr, *padded_ends = nullptr;
  std::int64_t count = 0;  // 0: all rows are one group
};

// The padded ends of `count` groups.
void pad_ends(const std::int32_t* ends, std::int64_t count, std::int32_t* padded_ends, cudaStream_t stream);

inline constexpr std::int64_t kMostQuantizedColumns = 32768;

// Elements of scratch that column scales need.
std::int64_t quantize_partials(std::int64_t rows, std::int64_t columns, std::int64_t batches);

// x holds `batches` matrices of equal size, one below the other: [batches * R, C]. If there are several, R is a
// multiple of 16. Rows of x are aligned to 16 bytes. C is a multiple of 8 and at most kMostQuantizedColumns. Either
// result may have no values.
//   rows: values [batches * R, C], scales [batches * R]
//   columns, each matrix transposed: values [batches, C, length], zero from R on, scales [batches, C]. Length is a
//   multiple of 16, and large enough for the groups' padding
void quantize(Matrix<const __nv_bfloat16> x, std::int64_t batches, Quantized rows, Quantized columns,
              std::int64_t length, RowGroups groups, __nv_bfloat16* partials, cudaStream_t stream);

}  // namespace braid::kernels
