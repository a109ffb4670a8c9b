// The products of experts with their rows, of bf16 or fp8 with float sums, on Hopper. Rows are sorted by expert.
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

// A matrix in fp8 with a scale for each row (kernels/quantize.h). Rows are contiguous, in multiples of 16 elements.
struct Fp8Operand {
  const std::uint8_t* values = nullptr;
  const float* scales = nullptr;
  std::int64_t rows = 0, columns = 0;
};

// The same products in fp8.
// rows: [R, K], matrices: [E * N, K] -> result: [R, N]; N is a multiple of 16. The tensor core adds with 13 bits.
void multiply_rows(const ExpertEnds& experts, const Fp8Operand& rows, const Fp8Operand& matrices,
                   const Matrix<__nv_bfloat16>& result, cudaStream_t stream);

// left right^T over the columns of each expert, which end at multiples of kGroupMultiple (kernels/quantize.h). Sums
// move from the tensor core to fp32 every 128 terms.   left: [M, L], right: [N, L], result: [E, M, N]
template <class T>
void multiply_columns(const ExpertEnds& padded, const Fp8Operand& left, const Fp8Operand& right, T* result,
                      bool overwrite, cudaStream_t stream);

}  // namespace braid::kernels
