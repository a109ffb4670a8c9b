// The products of experts with their rows, bf16 with float sums, on Hopper. Rows are sorted by expert.
#pragma once

#include "kernels/matrix.h"

namespace braid::kernels {

// Expert e has rows ends[e - 1] to ends[e], which may be none.
struct ExpertEnds {
  const std::int32_t* ends = nullptr;  // [E] on the device
  std::int64_t experts = 0;
};

// Whether the current device is a Hopper GPU and this program was compiled for it. Matrices must start at multiples of
// 16 bytes, and columns and strides must be multiples of 8 elements; there must be an expert, a row and a column.
bool has_grouped_products();

// The rows of each expert times its matrix, which is transposed or not.
// rows: [R, K], matrices: [E, N, K] if transposed, else [E, K, N] -> result: [R, N]
void multiply_rows(const ExpertEnds& experts, const Matrix<const __nv_bfloat16>& rows, const __nv_bfloat16* matrices,
                   bool transposed, const Matrix<__nv_bfloat16>& result, cudaStream_t stream);

// left^T right over the rows of each expert, added to the result or written over it. T is float, or bf16, which is
// always overwritten.   left: [R, M], right: [R, N], result: [E, M, N]
template <class T>
void multiply_columns(const ExpertEnds& experts, const Matrix<const __nv_bfloat16>& left,
                      const Matrix<const __nv_bfloat16>& right, T* result, bool overwrite, cudaStream_t stream);

}  // namespace braid::kernels
