#include <algorithm>

#include "kernels/column_sum.h"
#include "kernels/device.cuh"

namespace braid::kernels {
namespace {

constexpr int kAddWarps = 32, kSumWarps = 8, kBlocksPerMultiprocessor = 8;

// The sum of `x` over the warps of a block, in those of the first warp; every warp passes its own columns' values.
template <int kWarps>
__device__ float sum_over_warps(float x, float (&scratch)[kWarps][kWarp]) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  __syncthreads();
  scratch[warp][lane] = x;
  __syncthreads();
  float sum = 0;
  if (warp == 0)
    for (int other = 0; other < kWarps; ++other) sum += scratch[other][lane];
  return sum;
}

// A block adds 32 columns: warp w adds rows w, w + 32, ..., and the first warp adds the warps' sums.
template <class T>
__global__ void __launch_bounds__(kAddWarps* kWarp) add_rows(Matrix<const float> x, T* sums) {
  __shared__ float scratch[kAddWarps][kWarp];
  const std::int64_t column = std::int64_t{blockIdx.x} * kWarp + threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  float sum = 0;
  if (column < x.columns) {
#pragma unroll 8
    for (std::int64_t row = warp; row < x.rows; row += kAddWarps) sum += x.data[row * x.stride + column];
  }
  sum = sum_over_warps(sum, scratch);
  if (warp == 0 && column < x.columns) sums[column] = from_float<T>(sum);
}

// A block sums 32 * kWidth columns over every gridDim.y-th group of 8 rows, one row per warp at a time.
template <int kWidth, class T>
__global__ void __launch_bounds__(kSumWarps* kWarp) sum_rows(Matrix<const T> x, float* partials) {
  __shared__ float scratch[kSumWarps][kWarp];
  const std::int64_t column = (std::int64_t{blockIdx.x} * kWarp + threadIdx.x % kWarp) * kWidth;
  const int warp = threadIdx.x / kWarp;
  const bool inside = column < x.columns;
  float sums[kWidth] = {};
  if (inside) {
#pragma unroll 4
    for (std::int64_t row = blockIdx.y * kSumWarps + warp; row < x.rows; row += gridDim.y * kSumWarps) {
      const auto values = Vector<T, kWidth>::load(x.data + row * x.stride + column);
      for (int i = 0; i < kWidth; ++i) sums[i] += to_float(values.values[i]);
    }
  }
  for (int i = 0; i < kWidth; ++i) {
    const float sum = sum_over_warps(sums[i], scratch);
    if (warp == 0 && inside) partials[blockIdx.y * x.columns + column + i] = sum;
  }
}

}  // namespace

std::int64_t column_sum_partials(std::int64_t rows, std::int64_t columns) {
  if (columns == 0) return 0;
  const std::int64_t blocks_of_columns = blocks_for(columns, kWarp * kVectorWidth<__nv_bfloat16>);
  const std::int64_t wanted = blocks_for(std::int64_t{kBlocksPerMultiprocessor} * multiprocessors(), blocks_of_columns);
  return std::min(wanted, blocks_for(rows, kSumWarps));
}

template <class T>
void add_partials(Matrix<const float> partials, T* sums, cudaStream_t stream) {
  if (partials.columns == 0) return;
  add_rows<<<blocks_for(partials.columns, kWarp), kAddWarps * kWarp, 0, stream>>>(partials, sums);
}

template <class T>
void column_sum(Matrix<const T> x, float* partials, T* sums, cudaStream_t stream) {
  const auto count = static_cast<unsigned>(column_sum_partials(x.rows, x.columns));
  if (x.columns > 0 && count > 0)
    with_vector_width<T>(is_aligned(x), x.columns, [&](auto width) {
      const dim3 grid(blocks_for(x.columns, kWarp * width), count);
      sum_rows<width()><<<grid, kSumWarps * kWarp, 0, stream>>>(x, partials);
    });
  add_partials<T>({partials, count, x.columns, x.columns}, sums, stream);
}

template void column_sum(Matrix<const float>, float*, float*, cudaStream_t);
template void column_sum(Matrix<const __nv_bfloat16>, float*, __nv_bfloat16*, cudaStream_t);
template void add_partials(Matrix<const float>, float*, cudaStream_t);
template void add_partials(Matrix<const float>, __nv_bfloat16*, cudaStream_t);

}  // namespace braid::kernels
