// All products are sums of m16n8k16 matrix instructions. In their fragments, lane 4 g + q holds rows g and g + 8 of the
// left factor, column g of the right one, each at the inner indices 2 q, 2 q + 1, 2 q + 8 and 2 q + 9, and rows g and
// g + 8 of the result at columns 2 q and 2 q + 1. The order of inner indices and of columns is free, so each kernel
// chooses one in which a lane's elements are neighbours in memory.
#include <algorithm>

#include "kernels/device.cuh"
#include "kernels/router.h"

namespace braid::kernels {
namespace {

using bf16 = __nv_bfloat16;

struct Lane {
  __device__ Lane() : g(threadIdx.x % kWarp / 4), q(threadIdx.x % 4), warp(threadIdx.x / kWarp) {}
  int g, q, warp;
};

__device__ void multiply_add(float (&sum)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                             unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ unsigned pack(bf16 low, bf16 high) {
  return __bfloat16_as_ushort(low) | static_cast<unsigned>(__bfloat16_as_ushort(high)) << 16;
}

// Two numbers as sums of kParts bf16 numbers, packed; the first parts are the largest. Three parts are exact.
template <int kParts>
struct Pair {
  unsigned parts[kParts];

  __device__ Pair(float low, float high) {
    for (int i = 0; i < kParts; ++i) {
      const bf16 low_part = __float2bfloat16_rn(low), high_part = __float2bfloat16_rn(high);
      parts[i] = pack(low_part, high_part);
      low -= to_float(low_part);
      high -= to_float(high_part);
    }
  }
};

template <class W>
inline constexpr int kExactParts = sizeof(W) == sizeof(bf16) ? 1 : 3;

// Eight neighbours of a row, zeros beyond its end.
template <bool kAligned, class T>
__device__ Vector<T, 8> load_eight(const T* row, std::int64_t column, std::int64_t columns, bool is_row) {
  Vector<T, 8> values = {};
  if (!is_row) return values;
  if constexpr (kAligned) {  // columns is a multiple of 8
    if (column < columns) {
      constexpr int kWidth = kVectorWidth<T>;
      for (int i = 0; i < 8; i += kWidth)
        reinterpret_cast<Vector<T, kWidth>&>(values.values[i]) = Vector<T, kWidth>::load(row + column + i);
    }
  } else {
    for (int i = 0; i < 8; ++i)
      if (column + i < columns) values.values[i] = row[column + i];
  }
  return values;
}

__device__ unsigned pair_of(const Vector<bf16, 8>& values, int i) {
  return pack(values.values[2 * i], values.values[2 * i + 1]);
}

constexpr int kLogitWarps = 8, kLogitTokens = 32;

// A block computes 32 tokens times 8 kTiles experts. Its warps share the features: a step of a warp takes
// 32 of them, eight neighbours per lane. Shared: the sums of each warp, which are added in order.
template <class W, bool kAligned, int kTiles>
__global__ void __launch_bounds__(kLogitWarps* kWarp) logits_of(Tokens x, const W* weight, int experts, float* logits) {
  constexpr int kRows = kLogitTokens / 16, kExperts = 8 * kTiles;
  __shared__ float of_warps[kLogitWarps][kLogitTokens][kExperts];
  const Lane lane;
  const std::int64_t first_token = std::int64_t{blockIdx.x} * kLogitTokens;
  const int first_expert = static_cast<int>(blockIdx.y) * kExperts;
  // The tensor cores truncate their sums: small parts have their own.
  float large[kRows][kTiles][4] = {}, small[kRows][kTiles][4] = {};
#pragma unroll 2
  for (std::int64_t first = lane.warp * kWarp; first < x.columns; first += kLogitWarps * kWarp) {
    const std::int64_t column = first + lane.q * 8;
    Vector<bf16, 8> rows[2 * kRows];
#pragma unroll
    for (int i = 0; i < 2 * kRows; ++i) {
      const std::int64_t token = first_token + i * 8 + lane.g;
      rows[i] = load_eight<kAligned>(x.data + token * x.stride, column, x.columns, token < x.rows);
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int expert = first_expert + tile * 8 + lane.g;
      const auto w = load_eight<kAligned>(weight + expert * x.columns, column, x.columns, expert < experts);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const W* four = w.values + 4 * half;
        const Pair<kExactParts<W>> low(to_float(four[0]), to_float(four[1])),
            high(to_float(four[2]), to_float(four[3]));
#pragma unroll
        for (int part = 0; part < kExactParts<W>; ++part)
#pragma unroll
          for (int m = 0; m < kRows; ++m)
            multiply_add(part == 0 ? large[m][tile] : small[m][tile], pair_of(rows[2 * m], 2 * half),
                         pair_of(rows[2 * m + 1], 2 * half), pair_of(rows[2 * m], 2 * half + 1),
                         pair_of(rows[2 * m + 1], 2 * half + 1), low.parts[part], high.parts[part]);
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kRows; ++m)
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        of_warps[lane.warp][m * 16 + i / 2 * 8 + lane.g][tile * 8 + lane.q * 2 + i % 2] =
            large[m][tile][i] + small[m][tile][i];
  __syncthreads();
  for (int i = threadIdx.x; i < kLogitTokens * kExperts; i += kLogitWarps * kWarp) {
    const int row = i / kExperts, column = i % kExperts;
    float sum = 0;
    for (int warp = 0; warp < kLogitWarps; ++warp) sum += of_warps[warp][row][column];
    if (first_token + row < x.rows && first_expert + column < experts)
      logits[(first_token + row) * experts + first_expert + column] = sum;
  }
}

constexpr int kGradWarps = 4, kGradTokens = 32, kGradColumns = 64;

constexpr unsigned column_blocks(std::int64_t columns) {
  return static_cast<unsigned>(blocks_for(columns, kGradWarps * kGradColumns));
}

// The numbers of four neighbouring experts, zeros beyond the last.
template <class T>
__device__ Vector<float, 4> load_four(const T* row, int expert, int experts, bool is_row) {
  Vector<float, 4> values = {};
  for (int i = 0; i < 4; ++i)
    if (is_row && expert + i < experts) values.values[i] = to_float(row[expert + i]);
  return values;
}

// A warp computes 32 tokens times 64 features. Inner index 2 q, 2 q + 1, 2 q + 8, 2 q + 9 is expert 4 q, ..., 4 q + 3;
// column n of product j is feature 8 n + j, so that a lane loads and stores eight neighbours. bf16 results need two
// parts of each fp32 factor.
template <class W, bool kAligned>
__global__ void __launch_bounds__(kGradWarps* kWarp)
    x_gradients(const float* grad, const W* weight, int experts, Matrix<bf16> x_grad) {
  constexpr int kWeightParts = kExactParts<W> == 1 ? 1 : 2;
  const Lane lane;
  const unsigned across = column_blocks(x_grad.columns);
  const std::int64_t first_token = std::int64_t{blockIdx.x / across} * kGradTokens;
  const std::int64_t first_column = (std::int64_t{blockIdx.x % across} * kGradWarps + lane.warp) * kGradColumns;
  if (first_column >= x_grad.columns) return;
  float sums[2][8][4] = {};
  for (int first = 0; first < experts; first += 16) {
    const int expert = first + lane.q * 4;
    Vector<W, 8> rows[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      rows[i] = load_eight<kAligned>(weight + (expert + i) * x_grad.columns, first_column + lane.g * 8, x_grad.columns,
                                     expert + i < experts);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const std::int64_t token = first_token + m * 16 + lane.g;
      const auto upper = load_four(grad + token * experts, expert, experts, token < x_grad.rows);
      const auto lower = load_four(grad + (token + 8) * experts, expert, experts, token + 8 < x_grad.rows);
      const Pair<2> a[4] = {{upper.values[0], upper.values[1]},
                            {lower.values[0], lower.values[1]},
                            {upper.values[2], upper.values[3]},
                            {lower.values[2], lower.values[3]}};
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const auto at = [&](int i) { return to_float(rows[i].values[j]); };
        const Pair<kWeightParts> low(at(0), at(1)), high(at(2), at(3));
#pragma unroll
        for (int part = kWeightParts - 1; part >= 0; --part)
#pragma unroll
          for (int grad_part = 1 - part; grad_part >= 0; --grad_part)
            multiply_add(sums[m][j], a[0].parts[grad_part], a[1].parts[grad_part], a[2].parts[grad_part],
                         a[3].parts[grad_part], low.parts[part], high.parts[part]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {  // of each token of the lane, two times eight features
    const int m = i / 4, half = i / 2 % 2, side = i % 2;
    const std::int64_t token = first_token + m * 16 + half * 8 + lane.g;
    const std::int64_t column = first_column + (lane.q * 2 + side) * 8;
    if (token >= x_grad.rows) continue;
    const auto value = [&](int j) { return from_float<bf16>(sums[m][j][half * 2 + side]); };
    bf16* to = x_grad.data + token * x_grad.stride + column;
    if constexpr (kAligned) {
      if (column < x_grad.columns)
        __stwb(reinterpret_cast<uint4*>(to), make_uint4(pack(value(0), value(1)), pack(value(2), value(3)),
                                                        pack(value(4), value(5)), pack(value(6), value(7))));
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j)
        if (column + j < x_grad.columns) to[j] = value(j);
    }
  }
}

constexpr int kPartTokens = 256;
constexpr std::int64_t kMostParts = 64;

std::int64_t tokens_per_part(std::int64_t tokens) {
  return kPartTokens * blocks_for(std::max<std::int64_t>(tokens, 1), kPartTokens * kMostParts);
}

// Block (c, p, e) computes 16 experts times 64 features over the p-th part of the tokens. Each warp takes every fourth
// group of 16 tokens. Inner index 2 q, 2 q + 1, 2 q + 8, 2 q + 9 is token 4 q, ..., 4 q + 3; column n of product j
// is feature 8 n + j. Shared: the sums of each warp.   partials: [parts, E, H]
template <bool kAligned>
__global__ void __launch_bounds__(kGradWarps* kWarp)
    weight_gradients(const float* grad, Tokens x, int experts, std::int64_t per_part, float* partials) {
  constexpr int kExperts = 16;
  __shared__ float of_warps[kGradWarps][kExperts][kGradColumns + 1];
  const Lane lane;
  const std::int64_t first_column = std::int64_t{blockIdx.x} * kGradColumns, part = blockIdx.y;
  const int first_expert = static_cast<int>(blockIdx.z) * kExperts;
  const std::int64_t end = min((part + 1) * per_part, x.rows);
  float sums[8][4] = {};
  for (std::int64_t first = part * per_part + lane.warp * 16; first < end; first += kGradWarps * 16) {
    const std::int64_t token = first + lane.q * 4;
    Vector<bf16, 8> rows[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      rows[i] =
          load_eight<kAligned>(x.data + (token + i) * x.stride, first_column + lane.g * 8, x.columns, token + i < end);
    const auto grad_pair = [&](int row, int i) {
      const int expert = first_expert + row + lane.g;
      const auto grad_at = [&](std::int64_t t) {
        return t < end && expert < experts ? grad[t * experts + expert] : 0.f;
      };
      return Pair<3>(grad_at(token + i), grad_at(token + i + 1));
    };
    const Pair<3> a[4] = {grad_pair(0, 0), grad_pair(8, 0), grad_pair(0, 2), grad_pair(8, 2)};
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int i = 2; i >= 0; --i)  // the smallest part first, which loses least to truncation
        multiply_add(sums[j], a[0].parts[i], a[1].parts[i], a[2].parts[i], a[3].parts[i],
                     pack(rows[0].values[j], rows[1].values[j]), pack(rows[2].values[j], rows[3].values[j]));
  }
#pragma unroll
  for (int j = 0; j < 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) of_warps[lane.warp][i / 2 * 8 + lane.g][(lane.q * 2 + i % 2) * 8 + j] = sums[j][i];
  __syncthreads();
  for (int i = threadIdx.x; i < kExperts * kGradColumns; i += kGradWarps * kWarp) {
    const int row = i / kGradColumns, column = i % kGradColumns;
    if (first_expert + row >= experts || first_column + column >= x.columns) continue;
    float sum = 0;
    for (int warp = 0; warp < kGradWarps; ++warp) sum += of_warps[warp][row][column];
    partials[(part * experts + first_expert + row) * x.columns + first_column + column] = sum;
  }
}

constexpr int kThreads = 256;

// y[i] = the sum over parts, plus y[i] if `add`.   partials: [parts, count]
template <class W>
__global__ void __launch_bounds__(kThreads)
    sum_parts(const float* partials, std::int64_t parts, std::int64_t count, W* y, bool add) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  float sum = 0;
#pragma unroll 8
  for (std::int64_t part = 0; part < parts; ++part) sum += partials[part * count + i];
  y[i] = from_float<W>(add ? to_float(y[i]) + sum : sum);
}

unsigned grid_size(std::int64_t items, std::int64_t per_block) {
  return static_cast<unsigned>(blocks_for(items, per_block));
}

template <class W, bool kAligned>
void launch_logits(Tokens x, const W* weight, int experts, float* logits, cudaStream_t stream) {
  if (experts <= 16)
    logits_of<W, kAligned, 2>
        <<<grid_size(x.rows, kLogitTokens), kLogitWarps * kWarp, 0, stream>>>(x, weight, experts, logits);
  else
    logits_of<W, kAligned, 4>
        <<<dim3(grid_size(x.rows, kLogitTokens), grid_size(experts, 32)), kLogitWarps * kWarp, 0, stream>>>(
            x, weight, experts, logits);
}

template <bool kAligned>
void launch_weight_gradients(const float* grad, Tokens x, int experts, float* partials, cudaStream_t stream) {
  const std::int64_t per_part = tokens_per_part(x.rows);
  const dim3 blocks(grid_size(x.columns, kGradColumns), grid_size(x.rows, per_part), grid_size(experts, 16));
  weight_gradients<kAligned><<<blocks, kGradWarps * kWarp, 0, stream>>>(grad, x, experts, per_part, partials);
}

}  // namespace

template <class W>
void router_logits(Tokens x, const W* weight, int experts, float* logits, cudaStream_t stream) {
  if (x.rows == 0) return;
  if (is_aligned(x.data, x.stride) && x.columns % 8 == 0 && is_aligned(weight, x.columns))
    launch_logits<W, true>(x, weight, experts, logits, stream);
  else
    launch_logits<W, false>(x, weight, experts, logits, stream);
}

template <class W>
void router_logits_x_grad(const float* grad, const W* weight, int experts, Matrix<bf16> x_grad, cudaStream_t stream) {
  if (x_grad.rows == 0 || x_grad.columns == 0) return;
  const unsigned blocks = column_blocks(x_grad.columns) * grid_size(x_grad.rows, kGradTokens);
  if (is_aligned(x_grad.data, x_grad.stride) && x_grad.columns % 8 == 0 && is_aligned(weight, x_grad.columns))
    x_gradients<W, true><<<blocks, kGradWarps * kWarp, 0, stream>>>(grad, weight, experts, x_grad);
  else
    x_gradients<W, false><<<blocks, kGradWarps * kWarp, 0, stream>>>(grad, weight, experts, x_grad);
}

std::int64_t router_token_parts(std::int64_t tokens) { return blocks_for(tokens, tokens_per_part(tokens)); }

template <class W>
void router_logits_weight_grad(const float* grad, Tokens x, int experts, float* partials, W* weight_grad, bool add,
                               cudaStream_t stream) {
  const std::int64_t parts = router_token_parts(x.rows), count = experts * x.columns;
  if (count == 0) return;
  if (parts > 0 && is_aligned(x.data, x.stride) && x.columns % 8 == 0)
    launch_weight_gradients<true>(grad, x, experts, partials, stream);
  else if (parts > 0)
    launch_weight_gradients<false>(grad, x, experts, partials, stream);
  sum_parts<<<grid_size(count, kThreads), kThreads, 0, stream>>>(partials, parts, count, weight_grad, add);
}

template void router_logits(Tokens, const float*, int, float*, cudaStream_t);
template void router_logits(Tokens, const bf16*, int, float*, cudaStream_t);
template void router_logits_x_grad(const float*, const float*, int, Matrix<bf16>, cudaStream_t);
template void router_logits_x_grad(const float*, const bf16*, int, Matrix<bf16>, cudaStream_t);
template void router_logits_weight_grad(const float*, Tokens, int, float*, float*, bool, cudaStream_t);
template void router_logits_weight_grad(const float*, Tokens, int, float*, bf16*, bool, cudaStream_t);

}  // namespace braid::kernels
