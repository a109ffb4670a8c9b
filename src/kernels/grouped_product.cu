#include "kernels/grouped_product.cuh"
#include "kernels/quantize.h"

namespace braid::kernels {

namespace {

using namespace grouped;

template <Form kForm>
using Bf16Shape = Shape<bf16, kForm, /*kMultipliers=*/3, /*kTileColumns=*/192>;  // tiles of 256 x 192 were slower

}  // namespace

bool has_grouped_products() { return runs_on_hopper(grouped_product<Bf16Shape<Form::kPlain>, bf16>); }

void multiply_rows(const ExpertEnds& experts, const Matrix<const bf16>& rows, const bf16* matrices, bool transposed,
                   const Matrix<bf16>& result, cudaStream_t stream) {
  const Problem<bf16> problem = {
      experts, 0, static_cast<int>(result.columns), static_cast<int>(rows.columns), result.data, result.stride, false};
  const Matrices<bf16> left = {rows.data, rows.columns, rows.rows, 1, rows.stride};
  if (transposed)
    launch<Bf16Shape<Form::kTransposed>>(
        problem, left, {matrices, rows.columns, result.columns, experts.experts, rows.columns}, stream);
  else
    launch<Bf16Shape<Form::kPlain>>(problem, left,
                                    {matrices, result.columns, rows.columns, experts.experts, result.columns}, stream);
}

template <class T>
void multiply_columns(const ExpertEnds& experts, const Matrix<const bf16>& left, const Matrix<const bf16>& right,
                      T* result, bool overwrite, cudaStream_t stream) {
  const Problem<T> problem = {
      experts, static_cast<int>(left.columns), static_cast<int>(right.columns), 0, result, right.columns, !overwrite};
  launch<Bf16Shape<Form::kColumns>>(problem, {left.data, left.columns, left.rows, 1, left.stride},
                                    {right.data, right.columns, right.rows, 1, right.stride}, stream);
}
template void multiply_columns(const ExpertEnds&, const Matrix<const bf16>&, const Matrix<const bf16>&, bf16*, bool,
                               cudaStream_t);
template void multiply_columns(const ExpertEnds&, const Matrix<const bf16>&, const Matrix<const bf16>&, float*, bool,
                               cudaStream_t);

namespace {

using Fp8 = std::uint8_t;  // the bits of an e4m3
using RowsShape = Shape<Fp8, Form::kTransposed, /*kMultipliers=*/3, /*kTileColumns=*/192>;
using ColumnsShape = Shape<Fp8, Form::kColumns, 2, 160>;  // precise sums need twice the registers
static_assert(kGroupMultiple % ColumnsShape::kStep == 0, "a product must not reach into the next expert");

Matrices<Fp8> matrices_of(const Fp8Operand& x, std::int64_t count = 1) {
  return {x.values, x.columns, x.rows / count, count, x.columns};
}

}  // namespace

void multiply_rows(const ExpertEnds& experts, const Fp8Operand& rows, const Fp8Operand& matrices,
                   const Matrix<bf16>& result, cudaStream_t stream) {
  const Problem<bf16> problem = {experts,
                                 0,
                                 static_cast<int>(result.columns),
                                 static_cast<int>(rows.columns),
                                 result.data,
                                 result.stride,
                                 false,
                                 rows.scales,
                                 matrices.scales};
  launch<RowsShape>(problem, matrices_of(rows), matrices_of(matrices, experts.experts), stream);
}

template <class T>
void multiply_columns(const ExpertEnds& padded, const Fp8Operand& left, const Fp8Operand& right, T* result,
                      bool overwrite, cudaStream_t stream) {
  const Problem<T> problem = {padded,
                              static_cast<int>(left.rows),
                              static_cast<int>(right.rows),
                              0,
                              result,
                              right.rows,
                              !overwrite,
                              left.scales,
                              right.scales};
  launch<ColumnsShape>(problem, matrices_of(left), matrices_of(right), stream);
}
template void multiply_columns(const ExpertEnds&, const Fp8Operand&, const Fp8Operand&, bf16*, bool, cudaStream_t);
template void multiply_columns(const ExpertEnds&, const Fp8Operand&, const Fp8Operand&, float*, bool, cudaStream_t);

}  // namespace braid::kernels
