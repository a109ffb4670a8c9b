#include "kernels/grouped_product.cuh"

namespace braid::kernels {
namespace {

using namespace grouped;

template <Form kForm>
using Bf16Shape = Shape<bf16, kForm, /*kMultipliers=*/3, /*kTileColumns=*/192>;  // tiles of 256 x 192 were slower

}  // namespace

bool has_grouped_products() {
  int device = 0, major = 0, minor = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  if (major != 9 || minor != 0) return false;
  cudaFuncAttributes attributes = {};
  cudaFuncGetAttributes(&attributes, grouped_product<Bf16Shape<Form::kPlain>, bf16>);
  return attributes.sharedSizeBytes > 0;  // compiled for another target, the kernel is empty
}

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

}  // namespace braid::kernels
