// All products are sums of m16n8k16 matrix instructions. In their fragments, lane 4 g + q holds rows g and g + 8 of the
// left factor, column g of the right one, each at the inner indices 2 q, 2 q + 1, 2 q + 8 and 2 q + 9, and rows g and
// g + 8 of the result at columns 2 q and 2 q + 1. The order of inner indices and of columns is free, so each kernel
// chooses one in which a lane's elements are neighbours in memory.
#include <algorithm>

#include "kernels/device.cuh"
#include "kernels/pipeline.cuh"
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
  __device__ Pair(bf16 low, bf16 high) : parts{pack(low, high)} { static_assert(kParts == 1); }
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

// kCount neighbours of a row to shared memory, zeros beyond its end; asynchronously if they are aligned.
template <bool kAligned, int kCount, class T>
__device__ void copy(Vector<T, kCount>& to, const T* row, std::int64_t column, std::int64_t columns, bool is_row) {
  if constexpr (kAligned) {  // columns is a multiple of kCount
    constexpr int kBytes = sizeof(to) < 16 ? sizeof(to) : 16, kWidth = kBytes / sizeof(T);
    const std::size_t zeros = is_row && column < columns ? 0 : kBytes;
    for (int i = 0; i < kCount; i += kWidth) __pipeline_memcpy_async(to.values + i, row + column + i, kBytes, zeros);
  } else {
    Vector<T, kCount> values = {};
    for (int i = 0; i < kCount; ++i)
      if (is_row && column + i < columns) values.values[i] = row[column + i];
    to = values;
  }
}

// The most that a block may have on every GPU is 99 KiB; with half of it, two blocks share a multiprocessor of sm_90.
constexpr int kPipelineBytes = 96 << 10, kMostStages = 4;

constexpr int kLogitWarps = 8, kLogitTokens = 32;

template <class W, int kTiles>
struct LogitStage {
  Vector<bf16, 8> x[kLogitTokens / 8][kWarp];
  Vector<W, 8> weight[kTiles][kWarp];
};
template <class W, int kTiles>
inline constexpr int kLogitStages = std::min<int>(kMostStages,
                                                  kPipelineBytes / (kLogitWarps * sizeof(LogitStage<W, kTiles>)));

// A block computes 32 tokens times 8 kTiles experts. Its warps share the features: a step of a warp takes
// 32 of them, eight neighbours per lane. Shared: the stages; then the sums of each warp, which are added in order.
template <class W, bool kAligned, int kTiles>
__global__ void __launch_bounds__(kLogitWarps* kWarp) logits_of(Tokens x, const W* weight, int experts, float* logits) {
  wait_for_previous();
  constexpr int kRows = kLogitTokens / 16, kExperts = 8 * kTiles, kStages = kLogitStages<W, kTiles>;
  extern __shared__ __align__(16) char memory[];
  const Lane lane;
  LogitStage<W, kTiles>* const stages = reinterpret_cast<LogitStage<W, kTiles>*>(memory) + lane.warp * kStages;
  const std::int64_t first_token = std::int64_t{blockIdx.x} * kLogitTokens;
  const int first_expert = static_cast<int>(blockIdx.y) * kExperts, own = threadIdx.x % kWarp;
  const auto copy_step = [&](std::int64_t step, int stage) {
    const std::int64_t column = (step * kLogitWarps + lane.warp) * kWarp + lane.q * 8;
#pragma unroll
    for (int i = 0; i < 2 * kRows; ++i) {
      const std::int64_t token = first_token + i * 8 + lane.g;
      copy<kAligned>(stages[stage].x[i][own], x.data + token * x.stride, column, x.columns, token < x.rows);
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int expert = first_expert + tile * 8 + lane.g;
      copy<kAligned>(stages[stage].weight[tile][own], weight + expert * x.columns, column, x.columns, expert < experts);
    }
  };
  // The tensor cores truncate their sums: small parts have their own.
  float large[kRows][kTiles][4] = {}, small[kRows][kTiles][4] = {};
  const auto multiply = [&](std::int64_t, int stage) {
    Vector<bf16, 8> rows[2 * kRows];
#pragma unroll
    for (int i = 0; i < 2 * kRows; ++i) rows[i] = stages[stage].x[i][own];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const Vector<W, 8> w = stages[stage].weight[tile][own];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const W* four = w.values + 4 * half;
        const Pair<kExactParts<W>> low(four[0], four[1]), high(four[2], four[3]);
#pragma unroll
        for (int part = 0; part < kExactParts<W>; ++part)
#pragma unroll
          for (int m = 0; m < kRows; ++m)
            multiply_add(part == 0 ? large[m][tile] : small[m][tile], pair_of(rows[2 * m], 2 * half),
                         pair_of(rows[2 * m + 1], 2 * half), pair_of(rows[2 * m], 2 * half + 1),
                         pair_of(rows[2 * m + 1], 2 * half + 1), low.parts[part], high.parts[part]);
      }
    }
  };
  const std::int64_t steps = blocks_for(max(x.columns - lane.warp * kWarp, std::int64_t{0}), kLogitWarps * kWarp);
  pipeline<kStages>(steps, copy_step, multiply);

  auto* const of_warps = reinterpret_cast<float(*)[kLogitTokens][kExperts]>(memory);
  __syncthreads();
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

constexpr int kGradWarps = 4, kGradTokens = 16, kGradColumns = 64;

// The numbers of four neighbouring experts, zeros beyond the last.
template <bool kAligned>
__device__ Vector<float, 4> load_four(const float* row, int expert, int experts, bool is_row) {
  Vector<float, 4> values = {};
  if constexpr (kAligned) {  // experts is a multiple of 4
    if (is_row && expert < experts) values = Vector<float, 4>::load(row + expert);
  } else {
    for (int i = 0; i < 4; ++i)
      if (is_row && expert + i < experts) values.values[i] = row[expert + i];
  }
  return values;
}

// A warp computes 16 tokens times 64 features. Inner index 2 q, 2 q + 1, 2 q + 8, 2 q + 9 is expert 4 q, ..., 4 q + 3;
// column n of product j is feature 8 n + j, so that a lane loads and stores eight neighbours. bf16 results need two
// parts of each fp32 factor.
template <class W, bool kAligned>
__global__ void __launch_bounds__(kGradWarps* kWarp, 4)
    x_gradients(const float* grad, const W* weight, int experts, AddedGradients added, Matrix<bf16> x_grad) {
  wait_for_previous();
  constexpr int kWeightParts = kExactParts<W> == 1 ? 1 : 2;
  const Lane lane;
  const auto across = static_cast<unsigned>(blocks_for(x_grad.columns, kGradColumns));
  const std::int64_t first_token = (std::int64_t{blockIdx.x / across} * kGradWarps + lane.warp) * kGradTokens;
  const std::int64_t first_column = std::int64_t{blockIdx.x % across} * kGradColumns;
  // A lane has two tokens, and of each two times eight features.
  const auto token_at = [&](int below) { return first_token + below * 8 + lane.g; };
  const auto column_at = [&](int side) { return first_column + (lane.q * 2 + side) * 8; };
  Vector<bf16, 8> others[kMostAdded][4];
#pragma unroll
  for (int which = 0; which < kMostAdded; ++which)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Tokens& other = added.of_users[which];
      const std::int64_t token = token_at(i / 2);
      others[which][i] = load_eight<kAligned>(other.data + token * other.stride, column_at(i % 2), x_grad.columns,
                                              other.data && token < x_grad.rows);
    }
  float sums[8][4] = {};
#pragma unroll
  for (const auto& other : others)
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[j][i] += to_float(other[i].values[j]);
  for (int first = 0; first < experts; first += 16) {
    const int expert = first + lane.q * 4;
    Vector<W, 8> rows[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      rows[i] = load_eight<kAligned>(weight + (expert + i) * x_grad.columns, first_column + lane.g * 8, x_grad.columns,
                                     expert + i < experts);
    const auto grad_at = [&](int below) {
      return load_four<kAligned>(grad + token_at(below) * experts, expert, experts, token_at(below) < x_grad.rows);
    };
    const auto upper = grad_at(0), lower = grad_at(1);
    const Pair<2> a[4] = {{upper.values[0], upper.values[1]},
                          {lower.values[0], lower.values[1]},
                          {upper.values[2], upper.values[3]},
                          {lower.values[2], lower.values[3]}};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const Pair<kWeightParts> low(rows[0].values[j], rows[1].values[j]), high(rows[2].values[j], rows[3].values[j]);
#pragma unroll
      for (int part = kWeightParts - 1; part >= 0; --part)
#pragma unroll
        for (int grad_part = 1 - part; grad_part >= 0; --grad_part)
          multiply_add(sums[j], a[0].parts[grad_part], a[1].parts[grad_part], a[2].parts[grad_part],
                       a[3].parts[grad_part], low.parts[part], high.parts[part]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int below = i / 2, side = i % 2;
    if (token_at(below) >= x_grad.rows) continue;
    const auto value = [&](int j) { return from_float<bf16>(sums[j][i]); };
    bf16* to = x_grad.data + token_at(below) * x_grad.stride + column_at(side);
    if constexpr (kAligned) {
      if (column_at(side) < x_grad.columns)
        __stwb(reinterpret_cast<uint4*>(to), make_uint4(pack(value(0), value(1)), pack(value(2), value(3)),
                                                        pack(value(4), value(5)), pack(value(6), value(7))));
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j)
        if (column_at(side) + j < x_grad.columns) to[j] = value(j);
    }
  }
}

constexpr int kPartWarps = 8, kPartBlocks = 256;

// Block (c, p, e) computes 16 kTiles experts times 64 features over the p-th part of the tokens. Each warp takes every
// eighth group of 16 tokens. Inner index 2 q, 2 q + 1, 2 q + 8, 2 q + 9 is token 4 q, ..., 4 q + 3; row g or g + 8 of
// tile m is expert 2 kTiles g + 2 m or the next; column n of product j is feature 8 n + j. Shared: the stages; then the
// sums of each warp.   partials: [parts, E, H]
template <int kTiles>
struct PartStage {
  Vector<bf16, 8> x[4][kWarp];
  Vector<float, 2 * kTiles> grad[4][kWarp];
};
template <int kTiles>
inline constexpr int kPartStages = std::min<int>(kMostStages,
                                                 kPipelineBytes / (kPartWarps * sizeof(PartStage<kTiles>)));

template <bool kAligned, int kTiles>
__global__ void __launch_bounds__(kPartWarps* kWarp)
    weight_gradients(const float* grad, Tokens x, int experts, std::int64_t per_part, float* partials) {
  wait_for_previous();
  constexpr int kExperts = 16 * kTiles, kStages = kPartStages<kTiles>, kRow = kGradColumns + 1;
  extern __shared__ __align__(16) char memory[];
  const Lane lane;
  PartStage<kTiles>* const stages = reinterpret_cast<PartStage<kTiles>*>(memory) + lane.warp * kStages;
  const std::int64_t first_column = std::int64_t{blockIdx.x} * kGradColumns, part = blockIdx.y;
  const int first_expert = static_cast<int>(blockIdx.z) * kExperts, own = threadIdx.x % kWarp;
  const std::int64_t begin = part * per_part + lane.warp * 16, end = min((part + 1) * per_part, x.rows);
  const auto copy_step = [&](std::int64_t step, int stage) {
    const std::int64_t first = begin + step * (kPartWarps * 16) + lane.q * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool is_row = first + i < end;
      copy<kAligned>(stages[stage].x[i][own], x.data + (first + i) * x.stride, first_column + lane.g * 8, x.columns,
                     is_row);
      copy<kAligned>(stages[stage].grad[i][own], grad + (first + i) * experts, first_expert + lane.g * (2 * kTiles),
                     experts, is_row);
    }
  };
  float sums[kTiles][8][4] = {};
  const auto multiply = [&](std::int64_t, int stage) {
    Vector<bf16, 8> rows[4];
    Vector<float, 2 * kTiles> grads[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      rows[i] = stages[stage].x[i][own];
      grads[i] = stages[stage].grad[i][own];
    }
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const auto pair = [&](int row, int i) {
        return Pair<3>(grads[i].values[2 * m + row], grads[i + 1].values[2 * m + row]);
      };
      const Pair<3> a[4] = {pair(0, 0), pair(1, 0), pair(0, 2), pair(1, 2)};
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int i = 2; i >= 0; --i)  // the smallest part first, which loses least to truncation
          multiply_add(sums[m][j], a[0].parts[i], a[1].parts[i], a[2].parts[i], a[3].parts[i],
                       pack(rows[0].values[j], rows[1].values[j]), pack(rows[2].values[j], rows[3].values[j]));
    }
  };
  pipeline<kStages>(blocks_for(max(end - begin, std::int64_t{0}), kPartWarps * 16), copy_step, multiply);

  auto* const of_warps = reinterpret_cast<float(*)[kExperts][kRow]>(memory);
  __syncthreads();
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        of_warps[lane.warp][lane.g * (2 * kTiles) + 2 * m + i / 2][(lane.q * 2 + i % 2) * 8 + j] = sums[m][j][i];
  __syncthreads();
  for (int i = threadIdx.x; i < kExperts * kGradColumns; i += kPartWarps * kWarp) {
    const int row = i / kGradColumns, column = i % kGradColumns;
    if (first_expert + row >= experts || first_column + column >= x.columns) continue;
    float sum = 0;
    for (int warp = 0; warp < kPartWarps; ++warp) sum += of_warps[warp][row][column];
    partials[(part * experts + first_expert + row) * x.columns + first_column + column] = sum;
  }
}

constexpr int kThreads = 256;

// y[i] = the sum over parts, plus y[i] if `add`.   partials: [parts, count]
template <class W>
__global__ void __launch_bounds__(kThreads)
    sum_parts(const float* partials, std::int64_t parts, std::int64_t count, W* y, bool add) {
  wait_for_previous();
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

template <class Kernel>
Kernel* with_shared_memory(Kernel* kernel, std::size_t bytes) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  return kernel;
}

// A block's tiles cover this many experts; more of them per block would need more shared memory.
constexpr std::int64_t kFewExperts = 16, kManyExperts = 32;

constexpr std::int64_t experts_per_block(int experts) { return experts <= kFewExperts ? kFewExperts : kManyExperts; }

std::int64_t tokens_per_part(std::int64_t tokens, std::int64_t columns, int experts) {
  const std::int64_t others = blocks_for(columns, kGradColumns) * blocks_for(experts, experts_per_block(experts));
  const std::int64_t parts = std::max<std::int64_t>(1, kPartBlocks / std::max<std::int64_t>(1, others));
  return std::max<std::int64_t>(1, blocks_for(tokens, parts * kPartWarps * 16)) * kPartWarps * 16;
}

// call.operator()<kAligned, kFew>()
template <class Call>
void with_alignment(bool aligned, int experts, const Call& call) {
  const bool few = experts <= kFewExperts;
  if (aligned)
    few ? call.template operator()<true, true>() : call.template operator()<true, false>();
  else
    few ? call.template operator()<false, true>() : call.template operator()<false, false>();
}

}  // namespace

template <class W>
void router_logits(Tokens x, const W* weight, int experts, float* logits, cudaStream_t stream) {
  if (x.rows == 0) return;
  const bool aligned = has_vectors<8>(x) && is_aligned(weight, x.columns);
  with_alignment(aligned, experts, [&]<bool kAligned, bool kFew>() {
    constexpr int kTiles = (kFew ? kFewExperts : kManyExperts) / 8;
    constexpr std::size_t kBytes = sizeof(LogitStage<W, kTiles>) * kLogitStages<W, kTiles> * kLogitWarps;
    const dim3 blocks(grid_size(x.rows, kLogitTokens), grid_size(experts, 8 * kTiles));
    const auto kernel = with_shared_memory(logits_of<W, kAligned, kTiles>, kBytes);
    launch_kernel(kernel, {blocks, kLogitWarps * kWarp, kBytes, stream}, x, weight, experts, logits);
  });
}

template <class W>
void router_logits_x_grad(const float* grad, const W* weight, int experts, const AddedGradients& added,
                          Matrix<bf16> x_grad, cudaStream_t stream) {
  if (x_grad.rows == 0 || x_grad.columns == 0) return;
  bool aligned = has_vectors<8>(x_grad) && is_aligned(weight, x_grad.columns) && is_aligned(grad, experts);
  for (const Tokens& other : added.of_users) aligned = aligned && is_aligned(other);
  const unsigned blocks = grid_size(x_grad.columns, kGradColumns) * grid_size(x_grad.rows, kGradWarps * kGradTokens);
  const auto kernel = aligned ? x_gradients<W, true> : x_gradients<W, false>;
  launch_kernel(kernel, {blocks, kGradWarps * kWarp, 0, stream}, grad, weight, experts, added, x_grad);
}

std::int64_t router_token_parts(std::int64_t tokens, std::int64_t columns, int experts) {
  return blocks_for(tokens, tokens_per_part(tokens, columns, experts));
}

template <class W>
void router_logits_weight_grad(const float* grad, Tokens x, int experts, float* partials, W* weight_grad, bool add,
                               cudaStream_t stream) {
  const std::int64_t parts = router_token_parts(x.rows, x.columns, experts), count = experts * x.columns;
  if (count == 0) return;
  if (parts > 0)
    with_alignment(has_vectors<8>(x) && is_aligned(grad, experts), experts, [&]<bool kAligned, bool kFew>() {
      constexpr int kTiles = (kFew ? kFewExperts : kManyExperts) / 16;
      constexpr std::size_t kBytes = sizeof(PartStage<kTiles>) * kPartStages<kTiles> * kPartWarps;
      const dim3 blocks(grid_size(x.columns, kGradColumns), parts, grid_size(experts, 16 * kTiles));
      const auto kernel = with_shared_memory(weight_gradients<kAligned, kTiles>, kBytes);
      launch_kernel(kernel, {blocks, kPartWarps * kWarp, kBytes, stream}, grad, x, experts,
                    tokens_per_part(x.rows, x.columns, experts), partials);
    });
  launch_kernel(sum_parts<W>, {grid_size(count, kThreads), kThreads, 0, stream}, partials, parts, count, weight_grad,
                add);
}

template void router_logits(Tokens, const float*, int, float*, cudaStream_t);
template void router_logits(Tokens, const bf16*, int, float*, cudaStream_t);
template void router_logits_x_grad(const float*, const float*, int, const AddedGradients&, Matrix<bf16>, cudaStream_t);
template void router_logits_x_grad(const float*, const bf16*, int, const AddedGradients&, Matrix<bf16>, cudaStream_t);
template void router_logits_weight_grad(const float*, Tokens, int, float*, float*, bool, cudaStream_t);
template void router_logits_weight_grad(const float*, Tokens, int, float*, bf16*, bool, cudaStream_t);

}  // namespace braid::kernels
