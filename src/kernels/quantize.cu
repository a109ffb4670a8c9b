#include <cuda_fp8.h>

#include <algorithm>

#include "kernels/device.cuh"
#include "kernels/quantize.h"

namespace braid::kernels {
namespace {

using Bf16 = __nv_bfloat16;
constexpr int kWidth = kVectorWidth<Bf16>;
constexpr int kMostThreads = 512;  // of quantize_rows
constexpr int kReduceWarps = 32, kGroupMultiple = 16;
constexpr int kTilePositions = 128, kTileColumns = 64, kPositions = 8;  // of quantize_columns
constexpr int kTileThreads = kTilePositions / kPositions * kTileColumns / kWidth;

__device__ float scale_of(float largest) { return largest > 1e-30f ? largest * (1 / 448.f) : 1; }

__device__ unsigned to_fp8_pair(float low, float high) {
  return __nv_cvt_float2_to_fp8x2({low, high}, __NV_SATFINITE, __NV_E4M3);
}
__device__ unsigned to_fp8(float a, float b, float c, float d) { return to_fp8_pair(a, b) | to_fp8_pair(c, d) << 16; }

// Not for negative numbers, whose bits have another order.
__device__ float warp_max(float x) { return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(x))); }

// From the largest magnitudes of kRows rows in each warp: the scale of row `lane % kRows`.
template <int kRows>
__device__ float scale_of_row(const float (*largest)[kRows]) {
  const int lane = threadIdx.x % kWarp;
  float of_row = 0;
  for (int warp = lane / kRows; warp < blockDim.x / kWarp; warp += kWarp / kRows)
    of_row = fmaxf(of_row, largest[warp][lane % kRows]);
#pragma unroll
  for (int step = kRows; step < kWarp; step *= 2) of_row = fmaxf(of_row, __shfl_xor_sync(~0u, of_row, step));
  return scale_of(of_row);
}

// A block reads kRows rows of matrix blockIdx.y at a time, and a thread kVectors vectors of each, which stay in
// registers while their scales are found. A thread keeps its columns; the largest magnitudes of all that the block has
// read are a row of `partials`.
template <int kRows, int kVectors>
__global__ void __launch_bounds__(kMostThreads, 2) quantize_rows(Matrix<const Bf16> x, Quantized rows, Bf16* partials) {
  using Pairs = Vector<__nv_bfloat162, kWidth / 2>;
  __shared__ float scratch[2][kMostThreads / kWarp][kRows];  // two, so that one barrier per round is enough
  const std::int64_t first_of_matrix = blockIdx.y * x.rows;
  const auto column_of = [](int v) { return (v * blockDim.x + threadIdx.x) * kWidth; };
  Pairs of_columns[kVectors] = {};
  int round = 0;
  for (std::int64_t first = std::int64_t{blockIdx.x} * kRows; first < x.rows; first += gridDim.x * kRows, ++round) {
    Pairs loaded[kRows][kVectors] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const auto* row = reinterpret_cast<const __nv_bfloat162*>(x.data + (first_of_matrix + first + r) * x.stride);
#pragma unroll
      for (int v = 0; v < kVectors; ++v)
        if (first + r < x.rows && column_of(v) < x.columns) loaded[r][v] = Pairs::load(row + column_of(v) / 2);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      __nv_bfloat162 of_row = {};
#pragma unroll
      for (int v = 0; v < kVectors; ++v)
#pragma unroll
        for (int i = 0; i < kWidth / 2; ++i) {
          const __nv_bfloat162 magnitude = __habs2(loaded[r][v].values[i]);
          of_row = __hmax2(of_row, magnitude);
          of_columns[v].values[i] = __hmax2(of_columns[v].values[i], magnitude);
        }
      const float of_warp = warp_max(fmaxf(__low2float(of_row), __high2float(of_row)));
      if (threadIdx.x % kWarp == 0) scratch[round % 2][threadIdx.x / kWarp][r] = of_warp;
    }
    if (!rows.values) continue;

    __syncthreads();
    const float scale = scale_of_row<kRows>(scratch[round % 2]), inverse = 1 / scale;
    if (threadIdx.x < kRows && first + threadIdx.x < x.rows) rows.scales[first_of_matrix + first + threadIdx.x] = scale;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float factor = __shfl_sync(~0u, inverse, r);
      std::uint8_t* row = rows.values + (first_of_matrix + first + r) * x.columns;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const auto pair = [&](int i) {
          const float2 pair = __bfloat1622float2(loaded[r][v].values[i]);
          return to_fp8_pair(pair.x * factor, pair.y * factor);
        };
        if (first + r < x.rows && column_of(v) < x.columns)
          *reinterpret_cast<uint2*>(row + column_of(v)) = {pair(0) | pair(1) << 16, pair(2) | pair(3) << 16};
      }
    }
  }
  if (!partials) return;
  Bf16* own = partials + (std::int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * x.columns;
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
    if (column_of(v) < x.columns) of_columns[v].store(reinterpret_cast<__nv_bfloat162*>(own + column_of(v)));
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
// 8 rows, and 8 threads write the 128 bytes of a column. Which 16 bytes of a column lie where in the tile depends on
// the column: this keeps both sides free of bank conflicts. Blocks run from the last rows to the first, since the last
// were read just before and may still be in the cache.
__global__ void __launch_bounds__(kTileThreads)
    quantize_columns(Matrix<const Bf16> x, Quantized columns, std::int64_t length, RowGroups groups) {
  constexpr int kLanes = kTileColumns / kWidth;  // threads that read a row, and that write a column
  static_assert(kLanes == kTilePositions / 16 && kPositions == 8);
  __shared__ uint4 tile[kTileColumns][kLanes];
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
  const std::int64_t tile_column = std::int64_t{blockIdx.x} * kTileColumns, column = tile_column + lane * kWidth;
  const std::int64_t tile_position = std::int64_t{gridDim.y - 1 - blockIdx.y} * kTilePositions;
  const Bf16* data = x.data + blockIdx.z * x.rows * x.stride;
  const float* scales = columns.scales + blockIdx.z * x.columns;

  if (column < x.columns) {
    const Rows rows = rows_at(tile_position + group * kPositions, x.rows, groups);
    Vector<Bf16, kWidth> loaded[kPositions] = {};
#pragma unroll
    for (int r = 0; r < kPositions; ++r)
      if (r < rows.count) loaded[r] = Vector<Bf16, kWidth>::load(data + (rows.first + r) * x.stride + column);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float inverse = 1 / scales[column + i];
      const auto value = [&](int r) { return to_float(loaded[r].values[i]) * inverse; };
      auto* halves = reinterpret_cast<uint2*>(&tile[lane * kWidth + i][group / 2 ^ lane]);
      halves[group % 2] = {to_fp8(value(0), value(1), value(2), value(3)),
                           to_fp8(value(4), value(5), value(6), value(7))};
    }
  }
  __syncthreads();

  const std::int64_t position = tile_position + lane * 16;
  for (int c = group; c < kTileColumns && tile_column + c < x.columns; c += kTileThreads / kLanes) {
    std::uint8_t* to = columns.values + (blockIdx.z * x.columns + tile_column + c) * length + position;
    if (position < length) *reinterpret_cast<uint4*>(to) = tile[c][lane ^ c / kWidth];
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

namespace {

// How quantize_rows divides matrices.
struct RowBlocks {
  int vectors, threads;
  std::int64_t per_matrix;
};
RowBlocks row_blocks(std::int64_t rows, std::int64_t columns, std::int64_t batches) {
  constexpr int kBlocks = 2, kLeastThreads = 512;  // at a time on a multiprocessor
  const std::int64_t vectors = blocks_for(columns, kWidth), per_thread = blocks_for(vectors, kMostThreads);
  const int threads = static_cast<int>(blocks_for(blocks_for(vectors, per_thread), kWarp) * kWarp);
  const std::int64_t running = std::int64_t{multiprocessors()} * std::max(kBlocks, kBlocks * kLeastThreads / threads);
  return {static_cast<int>(per_thread), threads, std::min(rows, blocks_for(running, batches))};
}

// call(rows at a time, vectors per thread): about 8 vectors, which are in flight together.
template <class Call>
void with_row_shape(int vectors, const Call& call) {
  const auto run = [&]<int kRows, int kVectors>() {
    call(std::integral_constant<int, kRows>(), std::integral_constant<int, kVectors>());
  };
  if (vectors == 1) return run.template operator()<8, 1>();
  if (vectors == 2) return run.template operator()<4, 2>();
  if (vectors == 3) return run.template operator()<2, 3>();
  if (vectors == 4) return run.template operator()<2, 4>();
  run.template operator()<1, 8>();
}

}  // namespace

static_assert(kMostQuantizedColumns == kMostThreads * kWidth * 8);

std::int64_t quantize_partials(std::int64_t rows, std::int64_t columns, std::int64_t batches) {
  return batches * row_blocks(rows / batches, columns, batches).per_matrix * columns;
}

void quantize(Matrix<const Bf16> x, std::int64_t batches, Quantized rows, Quantized columns, std::int64_t length,
              RowGroups groups, Bf16* partials, cudaStream_t stream) {
  if (x.rows == 0 || x.columns == 0) return;
  x.rows /= batches;
  const auto matrices = static_cast<unsigned>(batches);
  const RowBlocks blocks = row_blocks(x.rows, x.columns, batches);
  with_row_shape(blocks.vectors, [&](auto at_a_time, auto vectors) {
    quantize_rows<at_a_time(), vectors()><<<dim3(blocks.per_matrix, matrices), blocks.threads, 0, stream>>>(
        x, rows, columns.values ? partials : nullptr);
  });
  if (!columns.values) return;

  const dim3 per_scale(blocks_for(x.columns, kWarp), matrices);
  column_scales<<<per_scale, kReduceWarps * kWarp, 0, stream>>>(partials, blocks.per_matrix, x.columns, columns.scales);
  const dim3 tiles(blocks_for(x.columns, kTileColumns), blocks_for(length, kTilePositions), matrices);
  quantize_columns<<<tiles, kTileThreads, 0, stream>>>(x, columns, length, groups);
}

}  // namespace braid::kernels
