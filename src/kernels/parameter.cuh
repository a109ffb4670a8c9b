// Parameters read as float, and their gradients summed from the partial sums of blocks.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device.cuh"
#include "kernels/parameter.h"

namespace braid::kernels {

__device__ inline float value_at(const Parameter& parameter, std::int64_t i) {
  return parameter.is_float ? static_cast<const float*>(parameter.data)[i]
                            : to_float(static_cast<const __nv_bfloat16*>(parameter.data)[i]);
}

__device__ inline void set_value(const Parameter& parameter, std::int64_t i, float value) {
  if (parameter.is_float)
    static_cast<float*>(parameter.data)[i] = value;
  else
    static_cast<__nv_bfloat16*>(parameter.data)[i] = from_float<__nv_bfloat16>(value);
}

constexpr int kSumColumns = 32, kSumSlices = 16;

// store(column, sum over the rows of partials[rows, columns]). A block has 32 columns and 16 slices of the rows; each
// thread adds every 16th row, then the first slice adds the sums of all. The order is always the same.
template <class Store>
__global__ void __launch_bounds__(kSumColumns* kSumSlices)
    sum_rows(const float* partials, std::int64_t rows, std::int64_t columns, Store store) {
  wait_for_previous();
  __shared__ float sums[kSumSlices][kSumColumns];
  const int lane = threadIdx.x % kSumColumns, slice = threadIdx.x / kSumColumns;
  const std::int64_t column = std::int64_t{blockIdx.x} * kSumColumns + lane;
  float sum = 0;
  if (column < columns) {
#pragma unroll 8
    for (std::int64_t row = slice; row < rows; row += kSumSlices) sum += partials[row * columns + column];
  }
  sums[slice][lane] = sum;
  __syncthreads();
  if (slice > 0 || column >= columns) return;
  for (int other = 1; other < kSumSlices; ++other) sum += sums[other][lane];
  store(column, sum);
}

template <class Store>
void launch_sum_rows(const float* partials, std::int64_t rows, std::int64_t columns, cudaStream_t stream, Store store) {
  if (columns == 0) return;
  launch_kernel(sum_rows<Store>, {blocks_for(columns, kSumColumns), kSumColumns * kSumSlices, 0, stream}, partials,
                rows, columns, store);
}

}  // namespace braid::kernels
