#include <cuda_fp8.h>

#include <algorithm>

#include "kernels/device.cuh"
#include "kernels/quantize.h"

namespace braid::kernels {
namespace {

using Bf16 = __nv_bfloat16;
constexpr int kWidth = kVectorWidth<Bf16>;
constexpr int kMostThreads = 512;  // of quantize_rows
constexpr int kReduceWarps = 32;
constexpr int kTilePositions = 128, kTileColumns = 64, kPositions = 8;  // of quantize_columns
constexpr int kTileThreads = kTilePositions / kPositions * kTileColumns / kWidth;

using Pairs = Vector<__nv_bfloat162, kWidth / 2>;

__device__ Pairs load_pairs(const Matrix<const Bf16>& x, std::int64_t row, std::int64_t column) {
  return Pairs::load(reinterpret_cast<const __nv_bfloat162*>(x.data + row * x.stride + column));
}

// Where rows come from and go to. A thread loads its vectors of several rows, then makes the values of each that are
// converted, then stores the fp8 of a row to its copies. A columns pass reads row r at origin(r).
struct PlainRows {
  Matrix<const Bf16> x;

  using Loaded = Pairs;
  static constexpr int kCost = 1;  // registers, relative to these rows
  static constexpr bool kHasSums = false;
  __device__ Loaded load(std::int64_t row, std::int64_t column) const { return load_pairs(x, row, column); }
  __device__ float factor(std::int64_t) const { return 1; }
  __device__ Pairs values(const Loaded& loaded, float) const { return loaded; }
  __device__ int copies() const { return 1; }
  __device__ std::int64_t copy(std::int64_t row, int) const { return row; }
  __device__ std::int64_t origin(std::int64_t row) const { return row; }
};

struct TokenRows : PlainRows {
  TokenOrder to;

  __device__ int copies() const { return to.top_k; }
  __device__ std::int64_t copy(std::int64_t row, int i) const { return to.inverse[row * to.top_k + i]; }
  __device__ std::int64_t origin(std::int64_t row) const {
    return static_cast<std::uint32_t>(to.order[row]) / static_cast<std::uint32_t>(to.top_k);
  }
};

struct SquaredReluRows : PlainRows {
  const float* scale;

  static constexpr int kCost = 2;
  __device__ float factor(std::int64_t row) const { return scale[row]; }
  __device__ Pairs values(Loaded loaded, float factor) const {
#pragma unroll
    for (__nv_bfloat162& pair : loaded.values) {
      const auto of = [&](float x) { return (x <= 0 ? 0 : x * x) * factor; };
      const float2 wide = __bfloat1622float2(pair);
      pair = __floats2bfloat162_rn(of(wide.x), of(wide.y));
    }
    return loaded;
  }
};

struct SquaredReluSlopes {
  Matrix<const Bf16> grad, x;
  const float* scale;
  Bf16* x_grad;
  float* scale_grad;

  struct Loaded {
    Pairs grad, x;
  };
  static constexpr int kCost = 2;
  static constexpr bool kHasSums = true;
  __device__ Loaded load(std::int64_t row, std::int64_t column) const {
    return {load_pairs(grad, row, column), load_pairs(x, row, column)};
  }
  __device__ float factor(std::int64_t row) const { return scale[row]; }
  __device__ Pairs values(Loaded loaded, float factor, float& sum) const {
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) {
      const float2 x = __bfloat1622float2(loaded.x.values[i]), grad = __bfloat1622float2(loaded.grad.values[i]);
      const auto of = [&](float x, float grad) {
        const float positive = x <= 0 ? 0 : x, slope = positive * grad;
        sum += slope * positive;
        return 2 * slope * factor;
      };
      const float low = of(x.x, grad.x), high = of(x.y, grad.y);
      loaded.x.values[i] = __floats2bfloat162_rn(low, high);
    }
    return loaded.x;
  }
  __device__ void store(std::int64_t row, std::int64_t column, const Pairs& values) const {
    values.store(reinterpret_cast<__nv_bfloat162*>(x_grad + row * x.columns + column));
  }
  __device__ int copies() const { return 1; }
  __device__ std::int64_t copy(std::int64_t row, int) const { return row; }
};

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

// A block converts kRows rows of matrix blockIdx.y at a time, and a thread kVectors vectors of each, which stay in
// registers while their scales are found. A thread keeps its columns; the largest magnitudes of all that the block has
// converted are a row of `partials`.
template <int kRows, int kVectors, class Source>
__global__ void __launch_bounds__(kMostThreads, 2)
    quantize_rows(Source source, std::int64_t row_count, std::int64_t column_count, Quantized rows, Bf16* partials) {
  // Two of each, so that one barrier per round is enough.
  __shared__ float largest[2][kMostThreads / kWarp][kRows];
  __shared__ float sums[2][Source::kHasSums ? kMostThreads / kWarp : 1][kRows];
  const int warp = threadIdx.x / kWarp;
  const std::int64_t first_of_matrix = blockIdx.y * row_count;
  const auto column_of = [](int v) { return (v * blockDim.x + threadIdx.x) * kWidth; };
  Pairs of_columns[kVectors] = {};
  int buffer = 0;
  for (std::int64_t first = std::int64_t{blockIdx.x} * kRows; first < row_count;
       first += gridDim.x * kRows, buffer ^= 1) {
    const auto row_of = [&](int r) { return first_of_matrix + first + r; };
    const auto exists = [&](int r, int v) { return first + r < row_count && column_of(v) < column_count; };
    typename Source::Loaded loaded[kRows][kVectors] = {};
    float factors[kRows] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first + r < row_count) factors[r] = source.factor(row_of(r));
#pragma unroll
      for (int v = 0; v < kVectors; ++v)
        if (exists(r, v)) loaded[r][v] = source.load(row_of(r), column_of(v));
    }
    Pairs values[kRows][kVectors];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      __nv_bfloat162 of_row = {};
      [[maybe_unused]] float sum = 0;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if constexpr (Source::kHasSums) {
          values[r][v] = source.values(loaded[r][v], factors[r], sum);
          if (exists(r, v)) source.store(row_of(r), column_of(v), values[r][v]);
        } else {
          values[r][v] = source.values(loaded[r][v], factors[r]);
        }
#pragma unroll
        for (int i = 0; i < kWidth / 2; ++i) {
          const __nv_bfloat162 magnitude = __habs2(values[r][v].values[i]);
          of_row = __hmax2(of_row, magnitude);
          of_columns[v].values[i] = __hmax2(of_columns[v].values[i], magnitude);
        }
      }
      const float of_warp = warp_max(fmaxf(__low2float(of_row), __high2float(of_row)));
      if (threadIdx.x % kWarp == 0) largest[buffer][warp][r] = of_warp;
      if constexpr (Source::kHasSums) {
        sum = warp_sum(sum);
        if (threadIdx.x % kWarp == 0) sums[buffer][warp][r] = sum;
      }
    }
    if (!rows.values && !Source::kHasSums) continue;

    __syncthreads();
    if constexpr (Source::kHasSums)
      if (source.scale_grad && threadIdx.x < kRows && first + threadIdx.x < row_count) {
        float sum = 0;
        for (int other = 0; other < blockDim.x / kWarp; ++other) sum += sums[buffer][other][threadIdx.x];
        source.scale_grad[row_of(threadIdx.x)] = sum;
      }
    if (!rows.values) continue;
    const float scale = scale_of_row<kRows>(largest[buffer]), inverse = 1 / scale;
    if (threadIdx.x < kRows && first + threadIdx.x < row_count)
      for (int i = 0; i < source.copies(); ++i) rows.scales[source.copy(row_of(threadIdx.x), i)] = scale;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float factor = __shfl_sync(~0u, inverse, r);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const auto pair = [&](int i) {
          const float2 pair = __bfloat1622float2(values[r][v].values[i]);
          return to_fp8_pair(pair.x * factor, pair.y * factor);
        };
        if (!exists(r, v)) continue;
        const uint2 packed = {pair(0) | pair(1) << 16, pair(2) | pair(3) << 16};
#pragma unroll 4
        for (int i = 0; i < source.copies(); ++i)
          *reinterpret_cast<uint2*>(rows.values + source.copy(row_of(r), i) * column_count + column_of(v)) = packed;
      }
    }
  }
  if (!partials) return;
  Bf16* own = partials + (std::int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * column_count;
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
    if (column_of(v) < column_count) of_columns[v].store(reinterpret_cast<__nv_bfloat162*>(own + column_of(v)));
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
template <class Source>
__global__ void __launch_bounds__(kTileThreads)
    quantize_columns(Source source, std::int64_t row_count, std::int64_t column_count, Quantized columns,
                     std::int64_t length, RowGroups groups) {
  constexpr int kLanes = kTileColumns / kWidth;  // threads that read a row, and that write a column
  static_assert(kLanes == kTilePositions / 16 && kPositions == 8 && kGroupMultiple % kPositions == 0);
  __shared__ uint4 tile[kTileColumns][kLanes];
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
  const std::int64_t tile_column = std::int64_t{blockIdx.x} * kTileColumns, column = tile_column + lane * kWidth;
  const std::int64_t tile_position = std::int64_t{gridDim.y - 1 - blockIdx.y} * kTilePositions;
  const float* scales = columns.scales + blockIdx.z * column_count;

  if (column < column_count) {
    const Rows rows = rows_at(tile_position + group * kPositions, row_count, groups);
    Pairs values[kPositions] = {};
#pragma unroll
    for (int r = 0; r < kPositions; ++r)
      if (r < rows.count) {
        const std::int64_t row = blockIdx.z * row_count + rows.first + r;
        values[r] = source.values(source.load(source.origin(row), column), source.factor(row));
      }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float inverse = 1 / scales[column + i];
      const auto value = [&](int r) {
        const __nv_bfloat162 pair = values[r].values[i / 2];
        return (i % 2 == 0 ? __low2float(pair) : __high2float(pair)) * inverse;
      };
      auto* halves = reinterpret_cast<uint2*>(&tile[lane * kWidth + i][group / 2 ^ lane]);
      halves[group % 2] = {to_fp8(value(0), value(1), value(2), value(3)),
                           to_fp8(value(4), value(5), value(6), value(7))};
    }
  }
  __syncthreads();

  const std::int64_t position = tile_position + lane * 16;
  for (int c = group; c < kTileColumns && tile_column + c < column_count; c += kTileThreads / kLanes) {
    std::uint8_t* to = columns.values + (blockIdx.z * column_count + tile_column + c) * length + position;
    if (position < length) *reinterpret_cast<uint4*>(to) = tile[c][lane ^ c / kWidth];
  }
}

// A thread adds up the padded lengths of all groups up to its own.
__global__ void add_padded_lengths(const std::int32_t* ends, std::int64_t count, std::int32_t* padded_ends) {
  const std::int64_t group = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (group >= count) return;
  constexpr auto kMultiple = static_cast<std::int32_t>(kGroupMultiple);
  std::int32_t begin = 0, sum = 0;
  for (std::int64_t i = 0; i <= group; ++i) {
    sum += (ends[i] - begin + kMultiple - 1) / kMultiple * kMultiple;
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
template <int kCost, class Call>
void with_row_shape(int vectors, const Call& call) {
  const auto run = [&]<int kRows, int kVectors>() {
    call(std::integral_constant<int, (kRows > kCost ? kRows / kCost : 1)>(), std::integral_constant<int, kVectors>());
  };
  if (vectors == 1) return run.template operator()<8, 1>();
  if (vectors == 2) return run.template operator()<4, 2>();
  if (vectors == 3) return run.template operator()<2, 3>();
  if (vectors == 4) return run.template operator()<2, 4>();
  run.template operator()<1, 8>();
}

// Converts `rows` rows of `source`, and `copies` times as many of `column_source`, of each matrix.
template <class Source, class ColumnSource>
void convert(const Source& source, const ColumnSource& column_source, std::int64_t rows, std::int64_t copies,
             std::int64_t columns, std::int64_t batches, const QuantizedForms& forms, cudaStream_t stream) {
  if (rows == 0 || columns == 0) return;
  const auto matrices = static_cast<unsigned>(batches);
  const RowBlocks blocks = row_blocks(rows, columns, batches);
  with_row_shape<Source::kCost>(blocks.vectors, [&](auto at_a_time, auto vectors) {
    quantize_rows<at_a_time(), vectors()><<<dim3(blocks.per_matrix, matrices), blocks.threads, 0, stream>>>(
        source, rows, columns, forms.rows, forms.columns.values ? forms.partials : nullptr);
  });
  if (!forms.columns.values) return;

  const dim3 per_scale(blocks_for(columns, kWarp), matrices);
  column_scales<<<per_scale, kReduceWarps * kWarp, 0, stream>>>(forms.partials, blocks.per_matrix, columns,
                                                                forms.columns.scales);
  const dim3 tiles(blocks_for(columns, kTileColumns), blocks_for(forms.length, kTilePositions), matrices);
  quantize_columns<<<tiles, kTileThreads, 0, stream>>>(column_source, rows * copies, columns, forms.columns,
                                                       forms.length, forms.groups);
}

}  // namespace

static_assert(kMostQuantizedColumns == kMostThreads * kWidth * 8);

std::int64_t quantize_partials(std::int64_t rows, std::int64_t columns, std::int64_t batches) {
  return batches * row_blocks(rows / batches, columns, batches).per_matrix * columns;
}

void quantize(Matrix<const Bf16> x, std::int64_t batches, const QuantizedForms& forms, cudaStream_t stream) {
  const PlainRows source = {x};
  convert(source, source, x.rows / batches, 1, x.columns, batches, forms, stream);
}

void quantize_permuted(Matrix<const Bf16> x, const TokenOrder& order, const QuantizedForms& forms,
                       cudaStream_t stream) {
  const TokenRows source = {{x}, order};
  convert(source, source, x.rows, order.top_k, x.columns, 1, forms, stream);
}

void quantize_scaled_squared_relu(Matrix<const Bf16> x, const float* scale, const QuantizedForms& forms,
                                  cudaStream_t stream) {
  const SquaredReluRows source = {{x}, scale};
  convert(source, source, x.rows, 1, x.columns, 1, forms, stream);
}

void quantize_scaled_squared_relu_backward(Matrix<const Bf16> grad, Matrix<const Bf16> x, const float* scale,
                                           Bf16* x_grad, float* scale_grad, const QuantizedForms& forms,
                                           cudaStream_t stream) {
  const SquaredReluSlopes source = {grad, x, scale, x_grad, scale_grad};
  const PlainRows slopes = {{x_grad, x.rows, x.columns, x.columns}};
  convert(source, slopes, x.rows, 1, x.columns, 1, forms, stream);
}

}  // namespace braid::kernels
