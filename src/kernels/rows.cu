#include "kernels/device.cuh"
#include "kernels/rows.h"

namespace braid::kernels {
namespace {

constexpr int kThreads = 256;

// A warp per row, so that a row's source is found once.
template <int kWidth, class T>
__global__ void __launch_bounds__(kThreads)
    pick(const std::int64_t* numbers, Matrix<const T> there, Matrix<const T> elsewhere, Matrix<T> y) {
  wait_for_previous();
  const std::int64_t row = std::int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (row >= y.rows) return;
  const std::int64_t number = numbers[row];
  const Matrix<const T>& from = number < 0 ? elsewhere : there;
  const T* source = from.data == nullptr ? nullptr : from.data + (number < 0 ? row : number) * from.stride;
#pragma unroll 4
  for (std::int64_t column = threadIdx.x % kWarp * kWidth; column < y.columns; column += kWarp * kWidth) {
    Vector<T, kWidth> vector;
    if (source != nullptr)
      vector = Vector<T, kWidth>::load(source + column);
    else
      for (T& value : vector.values) value = from_float<T>(0);
    vector.store(y.data + row * y.stride + column);
  }
}

}  // namespace

template <class T>
void pick_rows(const std::int64_t* numbers, const Matrix<const T>& there, const Matrix<const T>& elsewhere,
               const Matrix<T>& y, cudaStream_t stream) {
  if (y.rows == 0) return;
  const bool aligned = is_aligned(there) && is_aligned(elsewhere) && is_aligned(y);
  with_vector_width<T>(aligned, y.columns, [&](auto width) {
    launch_kernel(pick<width.value, T>, {blocks_for(y.rows, kThreads / kWarp), kThreads, 0, stream}, numbers, there,
                  elsewhere, y);
  });
}

template void pick_rows(const std::int64_t*, const Matrix<const float>&, const Matrix<const float>&,
                        const Matrix<float>&, cudaStream_t);
template void pick_rows(const std::int64_t*, const Matrix<const __nv_bfloat16>&, const Matrix<const __nv_bfloat16>&,
                        const Matrix<__nv_bfloat16>&, cudaStream_t);

}  // namespace braid::kernels
