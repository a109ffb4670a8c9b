#include <algorithm>
#include <cuda_fp8.h>
#include <utility>
#include "kernels/device.cuh"
#include "kernels/moe.h"

namespace braid::kernels {
namespace {

using Bf16 = __nv_bfloat16;
constexpr int kWidth = kVectorWidth<Bf16>;
constexpr int kMostThreads = 512;  // of quantize_rows
constexpr int kReduceWarps = 32;
constexpr int kTilePositions = 128, kTileColumns = 64, kPositions = 8;  // of quantize_columns
constexpr int kTileThreads = kTilePositions / kPositions * kTileColumns / kWidth;

struct Quantized {
  std::uint8_t* values;
  float* scales;

  explicit Quantized(const Fp8Matrices& x) : values(x.values), scales(x.scales) {}
};

struct RowGroups {
  const std::int32_t *ends, *padded_ends;
  std::int64_t count;  // 0: all rows are one group
};

struct TokenOrder {
  const std::int64_t *order, *inverse;
  int top_k;
};

// Each two numbers in bf16. As integers they move in whole vectors, which bf16 types do not.
using Pairs = Vector<unsigned, kWidth / 2>;

__device__ Pairs load_pairs(const Matrix<const Bf16>& x, unsigned row, unsigned column) {
  const Bf16* from = x.data + std::uint64_t{row} * static_cast<unsigned>(x.stride) + column;
  return Pairs::load(reinterpret_cast<const unsigned*>(from));
}
__device__ void store_pairs(const Pairs& pairs, Bf16* to) { pairs.store(reinterpret_cast<unsigned*>(to)); }
__device__ float2 to_floats(unsigned pair) { return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000)}; }
__device__ __nv_bfloat162 as_bf16(unsigned pair) { return reinterpret_cast<const __nv_bfloat162&>(pair); }
__device__ unsigned as_pair(const __nv_bfloat162& values) { return reinterpret_cast<const unsigned&>(values); }
__device__ unsigned largest_of(unsigned a, unsigned b) { return as_pair(__hmax2(as_bf16(a), as_bf16(b))); }

// Where rows come from and go to. A thread loads its vectors of several rows, then makes the values of each that are
// converted, then stores the fp8 of a row to its copies. A columns pass reads row r at origin(r).
struct PlainRows {
  Matrix<const Bf16> x;

  using Loaded = Pairs;
  static constexpr int kCost = 1;  // registers, relative to these rows
  static constexpr bool kHasSums = false, kGathers = false;
  __device__ Loaded load(unsigned row, unsigned column) const { return load_pairs(x, row, column); }
  __device__ float factor(unsigned) const { return 1; }
  __device__ Pairs values(const Loaded& loaded, float) const { return loaded; }
  __device__ unsigned origin(unsigned row) const { return row; }
  template <class Store>
  __device__ void for_copies(unsigned row, const Store& store) const {
    store(row);
  }
};

struct TokenRows : PlainRows {
  TokenOrder to;

  static constexpr bool kGathers = true;
  __device__ unsigned origin(unsigned row) const {
    return static_cast<unsigned>(to.order[row]) / static_cast<unsigned>(to.top_k);
  }
  // Called by whole warps: a lane loads the place of one copy.
  template <class Store>
  __device__ void for_copies(unsigned row, const Store& store) const {
    for (int first = 0; first < to.top_k; first += kWarp) {
      const int lane = threadIdx.x % kWarp, left = to.top_k - first;
      const unsigned place = lane < left ? static_cast<unsigned>(to.inverse[row * to.top_k + first + lane]) : 0;
      for (int i = 0; i < left && i < kWarp; ++i) store(__shfl_sync(~0u, place, i));
    }
  }
};

struct SquaredReluRows : PlainRows {
  const float* scale;

  __device__ float factor(unsigned row) const { return scale[row]; }
  __device__ Pairs values(Loaded loaded, float factor) const {
#pragma unroll
    for (unsigned& pair : loaded.values) {
      const float2 positive = to_floats(as_pair(__hmax2_nan(as_bf16(pair), as_bf16(0))));
      pair = as_pair(__floats2bfloat162_rn(positive.x * positive.x * factor, positive.y * positive.y * factor));
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
  __device__ Loaded load(unsigned row, unsigned column) const {
    return {load_pairs(grad, row, column), load_pairs(x, row, column)};
  }
  __device__ float factor(unsigned row) const { return scale[row]; }
  __device__ Pairs values(Loaded loaded, float factor, float& sum) const {
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) {
      const float2 x = to_floats(loaded.x.values[i]), grad = to_floats(loaded.grad.values[i]);
      const auto of = [&](float x, float grad) {
        const float positive = x <= 0 ? 0 : x, slope = positive * grad;
        sum += slope * positive;
        return 2 * slope * factor;
      };
      const float low = of(x.x, grad.x), high = of(x.y, grad.y);
      loaded.x.values[i] = as_pair(__floats2bfloat162_rn(low, high));
    }
    return loaded.x;
  }
  __device__ void store(unsigned row, unsigned column, const Pairs& values) const {
    store_pairs(values, x_grad + std::uint64_t{row} * static_cast<unsigned>(x.columns) + column);
  }
  template <class Store>
  __device__ void for_copies(unsigned row, const Store& store) const {
    store(row);
  }
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

// What a thread does with kVectors vectors of kRows rows, which begin at row `first` of matrix blockIdx.y.
template <int kRows, int kVectors, class Source>
struct RowsOfThread {
  const Source& source;
  unsigned row_count, column_count;
  typename Source::Loaded loaded[kRows][kVectors] = {};
  float factors[kRows] = {}, sums[kRows] = {};
  Pairs values[kRows][kVectors] = {}, of_columns[kVectors] = {};

  __device__ static unsigned column_of(int v) { return (v * blockDim.x + threadIdx.x) * kWidth; }
  __device__ bool has_column(int v) const { return column_of(v) < column_count; }
  __device__ unsigned row_of(unsigned row) const { return blockIdx.y * row_count + row; }

  // The last row again where there are fewer: this changes no maximum.
  __device__ void load(unsigned first) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const unsigned row = row_of(min(first + r, row_count - 1));
      factors[r] = source.factor(row);
#pragma unroll
      for (int v = 0; v < kVectors; ++v)
        if (has_column(v)) loaded[r][v] = source.load(row, column_of(v));
    }
  }

  __device__ void make_values() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      sums[r] = 0;
#pragma unroll
      for (int v = 0; v < kVectors; ++v)
        if constexpr (Source::kHasSums)
          values[r][v] = source.values(loaded[r][v], factors[r], sums[r]);
        else
          values[r][v] = source.values(loaded[r][v], factors[r]);
    }
  }

  // Of each row, by warp, and of each column so far.
  __device__ void find_largest(float (*by_warp)[kRows]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      unsigned of_row = 0;
#pragma unroll
      for (int v = 0; v < kVectors; ++v)
#pragma unroll
        for (int i = 0; i < kWidth / 2; ++i) {
          const unsigned magnitudes = values[r][v].values[i] & 0x7fff7fff;
          of_row = largest_of(of_row, magnitudes);
          of_columns[v].values[i] = largest_of(of_columns[v].values[i], magnitudes);
        }
      const float2 largest_two = to_floats(of_row);
      const float of_warp = warp_max(fmaxf(largest_two.x, largest_two.y));
      if (threadIdx.x % kWarp == 0) by_warp[threadIdx.x / kWarp][r] = of_warp;
    }
  }

  // The values themselves, and the sums of each warp.
  __device__ void store_values(unsigned first, float (*sums_by_warp)[kRows]) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v)
        if (first + r < row_count && has_column(v)) source.store(row_of(first + r), column_of(v), values[r][v]);
      const float sum = warp_sum(sums[r]);
      if (threadIdx.x % kWarp == 0) sums_by_warp[threadIdx.x / kWarp][r] = sum;
    }
  }

  __device__ void store_sums(unsigned first, const float (*by_warp)[kRows]) const {
    const unsigned row = first + threadIdx.x;
    if (!source.scale_grad || threadIdx.x >= kRows || row >= row_count) return;
    float sum = 0;
    for (int warp = 0; warp < blockDim.x / kWarp; ++warp) sum += by_warp[warp][threadIdx.x];
    source.scale_grad[row_of(row)] = sum;
  }

  __device__ void store_fp8(unsigned first, const float (*largest)[kRows], const Quantized& rows) const {
    const float scale_of_lane = scale_of_row<kRows>(largest), inverse_of_lane = 1 / scale_of_lane;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first + r >= row_count) break;
      const float scale = __shfl_sync(~0u, scale_of_lane, r), inverse = __shfl_sync(~0u, inverse_of_lane, r);
      uint2 packed[kVectors];
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const auto pair = [&](int i) {
          const float2 pair = to_floats(values[r][v].values[i]);
          return to_fp8_pair(pair.x * inverse, pair.y * inverse);
        };
        packed[v] = {pair(0) | pair(1) << 16, pair(2) | pair(3) << 16};
      }
      source.for_copies(row_of(first + r), [&](unsigned to) {
        if (threadIdx.x == 0) rows.scales[to] = scale;
#pragma unroll
        for (int v = 0; v < kVectors; ++v)
          if (has_column(v))
            *reinterpret_cast<uint2*>(rows.values + std::uint64_t{to} * column_count + column_of(v)) = packed[v];
      });
    }
  }

  __device__ void store_partials(Bf16* partials) const {
    Bf16* own = partials + std::uint64_t{blockIdx.y * gridDim.x + blockIdx.x} * column_count;
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
      if (has_column(v)) store_pairs(of_columns[v], own + column_of(v));
  }
};

// A block converts kRows rows of matrix blockIdx.y at a time, which stay in registers while their scales are found; the
// next rows are on their way meanwhile. A thread keeps its columns; the largest magnitudes of all that the block has
// converted are a row of `partials`.
template <int kRows, int kVectors, class Source>
__global__ void __launch_bounds__(kMostThreads, kVectors > 4 ? 1 : 2)
    quantize_rows(Source source, unsigned row_count, unsigned column_count, Quantized rows, Bf16* partials) {
  wait_for_previous();
  // Two of each, so that one barrier per round is enough.
  __shared__ float largest[2][kMostThreads / kWarp][kRows];
  __shared__ float sums[2][Source::kHasSums ? kMostThreads / kWarp : 1][kRows];
  RowsOfThread<kRows, kVectors, Source> own = {source, row_count, column_count};
  const unsigned step = gridDim.x * kRows;
  int buffer = 0;
  own.load(blockIdx.x * kRows);
  for (unsigned first = blockIdx.x * kRows; first < row_count; first += step, buffer ^= 1) {
    own.make_values();
    if (first + step < row_count) own.load(first + step);
    own.find_largest(largest[buffer]);
    if constexpr (Source::kHasSums) own.store_values(first, sums[buffer]);
    if (!rows.values && !Source::kHasSums) continue;
    __syncthreads();
    if constexpr (Source::kHasSums) own.store_sums(first, sums[buffer]);
    if (rows.values) own.store_fp8(first, largest[buffer], rows);
  }
  if (partials) own.store_partials(partials);
}

// The scales of 32 columns of matrix blockIdx.y, from `count` partial maxima each: warp w takes partials w, w + 32, ...
__global__ void __launch_bounds__(kReduceWarps* kWarp)
    column_scales(const Bf16* partials, std::int64_t count, std::int64_t columns, float* scales) {
  __shared__ float scratch[kReduceWarps][kWarp];
  wait_for_previous();
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

// The rows from a warp's first position on in a transposed matrix: the first, and how many are not padding.
struct Rows {
  int first, count;
};
__device__ Rows rows_at(int position, int rows, const RowGroups& groups) {
  if (groups.count == 0) return {position, rows - position};
  const int lane = threadIdx.x % kWarp, count = static_cast<int>(groups.count);
  int group = 0;  // the first whose padded end is behind the position
  for (int other = lane; other - lane < count; other += kWarp)
    group += __popc(__ballot_sync(~0u, other < count && groups.padded_ends[other] <= position));
  if (group == count) return {0, 0};
  if (group > 0) position += groups.ends[group - 1] - groups.padded_ends[group - 1];
  return {position, groups.ends[group] - position};
}

// A block transposes kTilePositions rows of kTileColumns columns, by way of shared memory. A warp has 32 rows of one
// group, and a lane finds where one of them comes from. A thread reads 8 columns of 8 rows, and 8 threads write the 128
// bytes of a column. Which 16 bytes of a column lie where in the tile depends on the column: this keeps both sides free
// of bank conflicts.
//
// Gathered rows are read several times, so tiles of the same columns run together: these columns of all rows stay in
// the cache. Other tiles run from the last rows to the first, since the last were read just before and may still be
// there.
template <class Source>
__global__ void __launch_bounds__(kTileThreads, 8)
    quantize_columns(Source source, unsigned row_count, unsigned column_count, Quantized columns, unsigned length,
                     RowGroups groups) {
  wait_for_previous();
  constexpr int kLanes = kTileColumns / kWidth, kPieces = kTilePositions / 16;  // of a row and of a column in a tile
  static_assert(kLanes == 8 && kPieces >= kLanes && kTileThreads == kTilePositions && kGroupMultiple % kWarp == 0);
  __shared__ uint4 tile[kTileColumns][kPieces];
  __shared__ Vector<unsigned, kPositions> origins[kTilePositions / kPositions];
  __shared__ Vector<float, kPositions> factors[kTilePositions / kPositions];
  __shared__ Vector<float, kWidth> inverses[kLanes];
  const unsigned across = Source::kGathers ? blockIdx.y : blockIdx.x;
  const unsigned down = Source::kGathers ? blockIdx.x : gridDim.y - 1 - blockIdx.y;
  const unsigned thread = threadIdx.x, lane = thread % kLanes, group = thread / kLanes;
  const unsigned tile_column = across * kTileColumns, tile_position = down * kTilePositions;

  const bool has_column = thread < kTileColumns && tile_column + thread < column_count;
  const float scale = has_column ? columns.scales[blockIdx.z * column_count + tile_column + thread] : 1;
  const Rows rows = rows_at(tile_position + thread / kWarp * kWarp, row_count, groups);
  const int in_warp = thread % kWarp;
  const unsigned own_row = blockIdx.z * row_count + (in_warp < rows.count ? rows.first + in_warp : 0);
  origins[thread / kPositions].values[thread % kPositions] = source.origin(own_row);
  factors[thread / kPositions].values[thread % kPositions] = source.factor(own_row);
  if (thread < kTileColumns) inverses[thread / kWidth].values[thread % kWidth] = 1 / scale;
  __syncthreads();

  const unsigned column = tile_column + lane * kWidth, existing = column < column_count ? column : 0;
  Pairs values[kPositions];
#pragma unroll
  for (int r = 0; r < kPositions; ++r) values[r] = source.load(origins[group].values[r], existing);
#pragma unroll
  for (int r = 0; r < kPositions; ++r) values[r] = source.values(values[r], factors[group].values[r]);
  if (const int missing_from = rows.count - in_warp / kLanes * kPositions; missing_from < kPositions)
#pragma unroll
    for (int r = 0; r < kPositions; ++r)
      if (r >= missing_from) values[r] = {};
  const Vector<float, kWidth> inverse = inverses[lane];
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const auto value = [&](int r) {
      const float2 pair = to_floats(values[r].values[i / 2]);
      return (i % 2 == 0 ? pair.x : pair.y) * inverse.values[i];
    };
    auto* halves = reinterpret_cast<uint2*>(&tile[lane * kWidth + i][group / 2 ^ lane]);
    halves[group % 2] = {to_fp8(value(0), value(1), value(2), value(3)),
                         to_fp8(value(4), value(5), value(6), value(7))};
  }
  __syncthreads();

  const unsigned piece = thread % kPieces, position = tile_position + piece * 16;
  if (position >= length) return;
#pragma unroll
  for (int first = 0; first < kTileColumns; first += kTileThreads / kPieces) {
    const unsigned c = first + thread / kPieces;
    if (tile_column + c >= column_count) break;
    std::uint8_t* to = columns.values + std::uint64_t{blockIdx.z * column_count + tile_column + c} * length + position;
    *reinterpret_cast<uint4*>(to) = tile[c][piece ^ c / kWidth];
  }
}

// A thread adds up the padded lengths of all groups up to its own.
__global__ void add_padded_lengths(const std::int32_t* ends, std::int64_t count, std::int32_t* padded_ends) {
  wait_for_previous();
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
  return {static_cast<int>(per_thread), threads, std::min(rows, std::max<std::int64_t>(running / batches, 1))};
}

// call(rows at a time, vectors per thread): about 4 vectors, which are in flight together.
template <int kCost, class Call>
void with_row_shape(int vectors, const Call& call) {
  const auto run = [&]<int kRows, int kVectors>() {
    call(std::integral_constant<int, (kRows > kCost ? kRows / kCost : 1)>(), std::integral_constant<int, kVectors>());
  };
  if (vectors == 1) return run.template operator()<4, 1>();
  if (vectors == 2) return run.template operator()<2, 2>();
  if (vectors == 3) return run.template operator()<1, 3>();
  if (vectors == 4) return run.template operator()<1, 4>();
  run.template operator()<1, 8>();
}

// Converts `rows` rows of `source`, and `copies` times as many of `column_source`, of each matrix.
template <class Source, class ColumnSource>
void convert(const Source& source, const ColumnSource& column_source, std::int64_t rows, std::int64_t copies,
             std::int64_t columns, std::int64_t batches, const QuantizedForms& forms, const Queue& queue) {
  if (rows == 0 || columns == 0) return;
  const Tensor& column_values = forms.columns.values;
  const auto matrices = static_cast<unsigned>(batches), width = static_cast<unsigned>(columns);
  const RowBlocks blocks = row_blocks(rows, columns, batches);
  Bf16* const partials = column_values.data ? queue.scratch<Bf16>(batches * blocks.per_matrix * columns) : nullptr;
  with_row_shape<Source::kCost>(blocks.vectors, [&](auto at_a_time, auto vectors) {
    launch_kernel(quantize_rows<at_a_time(), vectors(), Source>,
                  {dim3(blocks.per_matrix, matrices), blocks.threads, 0, queue}, source, static_cast<unsigned>(rows),
                  width, Quantized(forms.rows), partials);
  });
  if (!column_values.data) return;

  const dim3 per_scale(blocks_for(columns, kWarp), matrices);
  launch_kernel(column_scales, {per_scale, kReduceWarps * kWarp, 0, queue}, partials, blocks.per_matrix, columns,
                forms.columns.scales);
  const std::int64_t length = column_values.sizes[column_values.dims - 1];
  dim3 tiles(blocks_for(columns, kTileColumns), blocks_for(length, kTilePositions), matrices);
  if (ColumnSource::kGathers) std::swap(tiles.x, tiles.y);
  launch_kernel(quantize_columns<ColumnSource>, {tiles, kTileThreads, 0, queue}, column_source, rows * copies, columns,
                Quantized(forms.columns), length,
                RowGroups{forms.ends, forms.padded_ends, forms.ends.data ? forms.ends.rows() : 0});
}

}  // namespace

ComputeCapability compute_capability() {
  ComputeCapability capability;
  int device = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&capability.major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&capability.minor, cudaDevAttrComputeCapabilityMinor, device);
  return capability;
}

void pad_ends(const Tensor& ends, const Tensor& padded_ends, const Queue& queue) {
  constexpr int kThreads = 128;
  launch_kernel(add_padded_lengths, {blocks_for(ends.rows(), kThreads), kThreads, 0, queue}, ends, ends.rows(),
                padded_ends);
}

static_assert(kMostQuantizedColumns == kMostThreads * kWidth * 8);

void quantize(const Tensor& x, std::int64_t batches, const QuantizedForms& forms, const Queue& queue) {
  const PlainRows source = {x};
  convert(source, source, x.rows() / batches, 1, x.columns(), batches, forms, queue);
}

void quantize_permuted(const Tensor& x, const Tensor& order, const Tensor& inverse, std::int64_t top_k,
                       const QuantizedForms& forms, const Queue& queue) {
  const TokenRows source = {{x}, {order, inverse, static_cast<int>(top_k)}};
  convert(source, source, x.rows(), top_k, x.columns(), 1, forms, queue);
}

void quantize_scaled_squared_relu(const Tensor& x, const Tensor& scale, const QuantizedForms& forms,
                                  const Queue& queue) {
  const SquaredReluRows source = {{x}, scale};
  convert(source, source, x.rows(), 1, x.columns(), 1, forms, queue);
}

void quantize_scaled_squared_relu_backward(const Tensor& grad, const Tensor& x, const Tensor& scale,
                                           const Tensor& scale_grad, const QuantizedForms& forms, const Queue& queue) {
  Bf16* const x_grad = queue.scratch<Bf16>(x.elements());
  const SquaredReluSlopes source = {grad, x, scale, x_grad, scale_grad};
  const PlainRows slopes = {{x_grad, x.rows(), x.columns(), x.columns()}};
  convert(source, slopes, x.rows(), 1, x.columns(), 1, forms, queue);
}

}  // namespace braid::kernels
