#include <cuda_fp8.h>

#include <algorithm>

#include "kernels/device.cuh"
#include "kernels/quantize.h"

namespace braid::kernels {
namespace {

using Bf16 = __nv_bfloat16;
constexpr int kWidth = kVectorWidth<Bf16>;
constexpr int kRows = 8, kMostThreads = 512, kVectorsPerThread = 3;  // of quantize_rows
constexpr int kReduceWarps = 32, kGroupMultiple = 16;
constexpr int kTilePositions = 128, kTileColumns = 64, kTileThreads = 256, kPositions = 4;  // of quantize_columns

__device__ float scale_of(float largest) { return largest > 1e-30f ? largest * (1 / 448.f) : 1; }

__device__ unsigned to_fp8_pair(float low, float high) {
  return __nv_cvt_float2_to_fp8x2({low, high}, __NV_SATFINITE, __NV_E4M3);
}
__device__ unsigned to_fp8(float a, float b, float c, float d) { return to_fp8_pair(a, b) | to_fp8_pair(c, d) << 16; }

__device__ float warp_max(float x) {
  for (int lane = kWarp / 2; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, lane));
  return x;
}

// The largest magnitudes of this block's rows, each over the columns that the thread visits; those at even and odd
// columns apart. Those of the block's columns go to `partials`, if there are any.
__device__ void find_largest(const Matrix<const Bf16>& x, std::int64_t first, Bf16* partials,
                             __nv_bfloat162 (&largest)[kRows]) {
  using Pairs = Vector<__nv_bfloat162, kWidth / 2>;
  const auto* data = reinterpret_cast<const __nv_bfloat162*>(x.data + first * x.stride);
  const int rows = static_cast<int>(x.rows - first < kRows ? x.rows - first : kRows);
  const int columns = static_cast<int>(x.columns), stride = static_cast<int>(x.stride);
  for (int column = threadIdx.x * kWidth; column < columns; column += blockDim.x * kWidth) {
    Pairs loaded[kRows] = {}, of_columns = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (r < rows) loaded[r] = Pairs::load(data + (r * stride + column) / 2);
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int i = 0; i < kWidth / 2; ++i) {
        const __nv_bfloat162 magnitude = __habs2(loaded[r].values[i]);
        largest[r] = __hmax2(largest[r], magnitude);
        of_columns.values[i] = __hmax2(of_columns.values[i], magnitude);
      }
    if (partials)
      of_columns.store(reinterpret_cast<__nv_bfloat162*>(partials + std::int64_t{blockIdx.x} * columns + column));
  }
}

// A block takes kRows rows, a thread about kVectorsPerThread vectors of each. It reads them from memory to find the
// largest magnitudes, and again from a cache to quantise them.
__global__ void __launch_bounds__(kMostThreads, 2) quantize_rows(Matrix<const Bf16> x, Quantized rows, Bf16* partials) {
  __shared__ float scratch[kMostThreads / kWarp][kRows];
  const std::int64_t first = std::int64_t{blockIdx.x} * kRows;
  __nv_bfloat162 largest[kRows] = {};
  find_largest(x, first, partials, largest);
  if (!rows.values) return;

#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float of_warp = warp_max(fmaxf(__low2float(largest[r]), __high2float(largest[r])));
    if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp][r] = of_warp;
  }
  __syncthreads();
#pragma unroll 2
  for (int r = 0; r < kRows && first + r < x.rows; ++r) {
    float of_row = 0;
    for (int warp = 0; warp < blockDim.x / kWarp; ++warp) of_row = fmaxf(of_row, scratch[warp][r]);
    const float scale = scale_of(of_row), inverse = 1 / scale;
    if (threadIdx.x == 0) rows.scales[first + r] = scale;
    const Bf16* from_row = x.data + (first + r) * x.stride;
    std::uint8_t* to_row = rows.values + (first + r) * x.columns;
    for (int column = threadIdx.x * kWidth; column < x.columns; column += blockDim.x * kWidth) {
      const auto from = Vector<Bf16, kWidth>::load(from_row + column);
      const auto value = [&](int i) { return to_float(from.values[i]) * inverse; };
      *reinterpret_cast<uint2*>(to_row + column) = {to_fp8(value(0), value(1), value(2), value(3)),
                                                    to_fp8(value(4), value(5), value(6), value(7))};
    }
  }
}

// The scales of 32 columns of matrix blockIdx.y, from `count` partial maxima each: warp w takes partials w, w + 32, ...
__global__ void __launch_bounds__(kReduceWarps* kWarp)
    column_scales(const Bf16* partials, std::int64_t count, std::int64_t columns, float* scales) {
  __shared__ float scratch[kReduceWarps][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const std::int64_t column = std::int64_t{blockIdx.x} * kWarp + lane;
  const Bf16* own = partials + blockIdx.y * count * columns + column;
  float largest = 0;
  if (column < columns) {
#pragma unroll 8
    for (std::int64_t row = warp; row < count; row += kReduceWarps)
      largest = fmaxf(largest, to_float(own[row * columns]));
  }
  scratch[warp][lane] = largest;
  __syncthreads();
  if (warp > 0 || column >= columns) return;
  for (int other = 1; other < kReduceWarps; ++other) largest = fmaxf(largest, scratch[other][lane]);
  scales[blockIdx.y * columns + column] = scale_of(largest);
}

// The rows at kPositions successive positions of a transposed matrix: the first row, and how many are not padding.
struct Rows {
  std::int64_t first, count;
};
__device__ Rows rows_at(std::int64_t position, std::int64_t rows, const RowGroups& groups) {
  std::int64_t end = rows;
  if (groups.count > 0) {
    std::int64_t low = 0, high = groups.count;  // the first group whose padded end is behind the position
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (groups.padded_ends[middle] > position)
        high = middle;
      else
        low = middle + 1;
    }
    if (low == groups.count) return {0, 0};
    if (low > 0) position += groups.ends[low - 1] - groups.padded_ends[low - 1];
    end = groups.ends[low];
  }
  const std::int64_t left = end - position;
  return {position, left < 0 ? 0 : left};
}

// A block transposes kTilePositions rows of kTileColumns columns, by way of shared memory. A thread reads 8 columns of
// 4 rows and makes a word of 4 bytes for each column; a warp then writes the 128 bytes of a column. The padding of the
// tile keeps both sides free of bank conflicts.
__global__ void __launch_bounds__(kTileThreads)
    quantize_columns(Matrix<const Bf16> x, Quantized columns, std::int64_t length, RowGroups groups) {
  __shared__ unsigned tile[kTileColumns][kTilePositions / kPositions + 1];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int own_column = lane % (kTileColumns / kWidth) * kWidth;
  const int own_word = threadIdx.x / (kTileColumns / kWidth);
  const std::int64_t tile_column = std::int64_t{blockIdx.y} * kTileColumns, column = tile_column + own_column;
  const std::int64_t tile_position = std::int64_t{blockIdx.x} * kTilePositions;
  const Bf16* data = x.data + blockIdx.z * x.rows * x.stride;
  const float* scales = columns.scales + blockIdx.z * x.columns;

  if (column < x.columns) {
    const Rows rows = rows_at(tile_position + own_word * kPositions, x.rows, groups);
    Vector<Bf16, kWidth> loaded[kPositions] = {};
#pragma unroll
    for (int r = 0; r < kPositions; ++r)
      if (r < rows.count) loaded[r] = Vector<Bf16, kWidth>::load(data + (rows.first + r) * x.stride + column);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float inverse = 1 / scales[column + i];
      const auto value = [&](int r) { return to_float(loaded[r].values[i]) * inverse; };
      tile[own_column + i][own_word] = to_fp8(value(0), value(1), value(2), value(3));
    }
  }
  __syncthreads();

  const std::int64_t position = tile_position + lane * kPositions;
  for (int c = warp; c < kTileColumns && tile_column + c < x.columns; c += kTileThreads / kWarp) {
    std::uint8_t* to = columns.values + (blockIdx.z * x.columns + tile_column + c) * length + position;
    if (position < length) *reinterpret_cast<unsigned*>(to) = tile[c][lane];
  }
}

// A thread adds up the padded lengths of all groups up to its own.
__global__ void add_padded_lengths(const std::int32_t* ends, std::int64_t count, std::int32_t* padded_ends) {
  const std::int64_t group = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (group >= count) return;
  std::int32_t begin = 0, sum = 0;
  for (std::int64_t i = 0; i <= group; ++i) {
    sum += (ends[i] - begin + kGroupMultiple - 1) / kGroupMultiple * kGroupMultiple;
    begin = ends[i];
  }
  padded_ends[group] = sum;
}

}  // namespace

void pad_ends(const std::int32_t* ends, std::int64_t count, std::int32_t* padded_ends, cudaStream_t stream) {
  constexpr int kThreads = 128;
  if (count > 0) add_padded_lengths<<<blocks_for(count, kThreads), kThreads, 0, stream>>>(ends, count, padded_ends);
}

std::int64_t quantize_partials(std::int64_t rows, std::int64_t columns) { return blocks_for(rows, kRows) * columns; }

void quantize(Matrix<const Bf16> x, std::int64_t batches, Quantized rows, Quantized columns, std::int64_t length,
              RowGroups groups, Bf16* partials, cudaStream_t stream) {
  if (x.rows == 0 || x.columns == 0) return;
  const std::int64_t vectors = blocks_for(x.columns, kWidth * kVectorsPerThread);
  const auto threads = std::min<std::int64_t>(blocks_for(vectors, kWarp) * kWarp, kMostThreads);
  quantize_rows<<<blocks_for(x.rows, kRows), threads, 0, stream>>>(x, rows, columns.values ? partials : nullptr);
  if (!columns.values) return;

  Matrix<const Bf16> one = x;
  one.rows /= batches;
  const auto matrices = static_cast<unsigned>(batches);
  const dim3 per_scale(blocks_for(x.columns, kWarp), matrices);
  column_scales<<<per_scale, kReduceWarps * kWarp, 0, stream>>>(partials, blocks_for(one.rows, kRows), x.columns,
                                                                columns.scales);
  const dim3 tiles(blocks_for(length, kTilePositions), blocks_for(x.columns, kTileColumns), matrices);
  quantize_columns<<<tiles, kTileThreads, 0, stream>>>(one, columns, length, groups);
}

}  // namespace braid::kernels
