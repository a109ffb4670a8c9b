#include <algorithm>

#include "kernels/column_sum.h"
#include "kernels/device.cuh"

namespace braid::kernels {
namespace {

constexpr int kAddWarps = 32, kSumWarps = 16, kSumThreads = kSumWarps * kWarp, kRowVectors = 8;
constexpr int kSumBlocks = 2;  // per multiprocessor

// A block adds 32 columns: warp w adds rows w, w + 32, ..., and the first warp adds the warps' sums. It
// loads 5 x 32 rows before it adds them: all partial sums of a GPU with up to 160 multiprocessors.
template <class T>
__global__ void __launch_bounds__(kAddWarps* kWarp) add_rows(Matrix<const float> x, T* sums) {
  constexpr int kRowsAtOnce = 5;
  wait_for_previous();
  __shared__ float scratch[kAddWarps][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const std::int64_t column = std::int64_t{blockIdx.x} * kWarp + lane;
  float sum = 0;
  for (std::int64_t first = warp; first < x.rows; first += kRowsAtOnce * kAddWarps) {
    float values[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const std::int64_t row = first + i * kAddWarps;
      values[i] = row < x.rows && column < x.columns ? x.data[row * x.stride + column] : 0.f;
    }
    for (const float value : values) sum += value;
  }
  scratch[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column >= x.columns) return;
  for (int other = 1; other < kAddWarps; ++other) sum += scratch[other][lane];
  sums[column] = from_float<T>(sum);
}

// A block sums 8 vectors of columns over part blockIdx.y of the rows: 8 lanes have a row, each of them one vector. Many
// rows on their way at once make up for their short pieces. The sums of all rows are final.
template <int kWidth, class T>
__global__ void __launch_bounds__(kSumThreads, kSumBlocks) sum_rows(Matrix<const T> x, float* partials, T* sums) {
  wait_for_previous();
  constexpr int kRowsAtOnce = 4, kStep = kSumThreads / kRowVectors;
  __shared__ float scratch[kSumWarps][kRowVectors][kWidth];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, vector = lane % kRowVectors;
  const std::int64_t column = (std::int64_t{blockIdx.x} * kRowVectors + vector) * kWidth;
  const std::int64_t begin = x.rows * blockIdx.y / gridDim.y, end = x.rows * (blockIdx.y + 1) / gridDim.y;
  const bool inside = column < x.columns;
  float own[kWidth] = {};
  const auto load = [&](std::int64_t row) { return Vector<T, kWidth>::load(x.data + row * x.stride + column); };
  const auto add = [&](const Vector<T, kWidth>& values) {
    for (int i = 0; i < kWidth; ++i) own[i] += to_float(values.values[i]);
  };
  if (inside) {
    std::int64_t row = begin + threadIdx.x / kRowVectors;
    for (; row + (kRowsAtOnce - 1) * kStep < end; row += kRowsAtOnce * kStep) {
      Vector<T, kWidth> rows[kRowsAtOnce];
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) rows[i] = load(row + i * kStep);
#pragma unroll
      for (const auto& values : rows) add(values);
    }
    for (; row < end; row += kStep) add(load(row));
  }
  for (int i = 0; i < kWidth; ++i) {
    for (int other = kRowVectors; other < kWarp; other *= 2) own[i] += __shfl_xor_sync(~0u, own[i], other);
    if (lane < kRowVectors) scratch[warp][vector][i] = own[i];
  }
  __syncthreads();
  for (int i = warp; i < kRowVectors * kWidth; i += kSumWarps) {  // a warp adds the sums of all for one column
    const float sum = warp_sum(lane < kSumWarps ? scratch[lane][i / kWidth][i % kWidth] : 0.f);
    const std::int64_t to = std::int64_t{blockIdx.x} * kRowVectors * kWidth + i;
    if (lane > 0 || to >= x.columns) continue;
    if (gridDim.y == 1)
      sums[to] = from_float<T>(sum);
    else
      partials[blockIdx.y * x.columns + to] = sum;
  }
}

}  // namespace

// One part of all rows, whose sums need no second kernel, if the columns alone make enough blocks.
std::int64_t column_sum_partials(std::int64_t rows, std::int64_t columns) {
  if (columns == 0) return 0;
  const std::int64_t blocks_of_columns = blocks_for(columns, kRowVectors * kVectorWidth<__nv_bfloat16>);
  const std::int64_t wanted = kSumBlocks * multiprocessors() / blocks_of_columns;
  return std::clamp<std::int64_t>(rows / (kSumThreads / kRowVectors), 1, std::max<std::int64_t>(wanted, 1));
}

template <class T>
void add_partials(Matrix<const float> partials, T* sums, cudaStream_t stream) {
  if (partials.columns == 0) return;
  launch_kernel(add_rows<T>, {blocks_for(partials.columns, kWarp), kAddWarps * kWarp, 0, stream}, partials, sums);
}

template <class T>
void column_sum(Matrix<const T> x, float* partials, T* sums, cudaStream_t stream) {
  if (x.columns == 0) return;
  const auto parts = static_cast<unsigned>(column_sum_partials(x.rows, x.columns));
  with_vector_width<T>(is_aligned(x), x.columns, [&](auto width) {
    const dim3 grid(blocks_for(x.columns, kRowVectors * width), parts);
    launch_kernel(sum_rows<width(), T>, {grid, kSumThreads, 0, stream}, x, partials, sums);
  });
  if (parts > 1) add_partials<T>({partials, parts, x.columns, x.columns}, sums, stream);
}

template void column_sum(Matrix<const float>, float*, float*, cudaStream_t);
template void column_sum(Matrix<const __nv_bfloat16>, float*, __nv_bfloat16*, cudaStream_t);
template void add_partials(Matrix<const float>, float*, cudaStream_t);
template void add_partials(Matrix<const float>, __nv_bfloat16*, cudaStream_t);

}  // namespace braid::kernels
