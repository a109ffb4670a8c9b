// All products are sums of m16n8k16 matrix instructions. In their fragments, lane 4 g + q holds rows g and g + 8 of the
// left factor, column g of the right one, each at the inner indices 2 q, 2 q + 1, 2 q + 8 and 2 q + 9, and rows g and
// g + 8 of the result at columns 2 q and 2 q + 1. The order of inner indices and of columns is free, so each kernel
// chooses one in which a lane's elements are neighbours in memory.
#include <algorithm>
#include "kernels/device.cuh"
#include "kernels/moe.h"
#include "kernels/tensor_core.cuh"

namespace braid::kernels {
namespace {

using Tokens = Matrix<const bf16>;  // [T, H]

// Those without data do not count.
struct AddedGradients {
  Tokens of_users[kMostAdded];
};

__device__ unsigned word_of(bf16 low, bf16 high) {
  return __bfloat16_as_ushort(low) | static_cast<unsigned>(__bfloat16_as_ushort(high)) << 16;
}

// Two numbers as sums of kParts bf16 numbers, packed; the first parts are the largest. Three parts are exact.
template <int kParts>
struct Pair {
  unsigned parts[kParts];

  __device__ Pair(float low, float high) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      parts[i] = pack(low, high);
      const float2 rounded = unpack(parts[i]);
      low -= rounded.x;
      high -= rounded.y;
    }
  }
  __device__ Pair(bf16 low, bf16 high) : parts{word_of(low, high)} { static_assert(kParts == 1); }
};

template <class W>
inline constexpr int kExactParts = sizeof(W) == sizeof(bf16) ? 1 : 3;

__device__ unsigned pair_of(const Vector<bf16, 8>& values, int i) {
  return word_of(values.values[2 * i], values.values[2 * i + 1]);
}

// kCount neighbours of a row to shared memory, zeros beyond its end; asynchronously if they are aligned.
template <bool kAligned, int kCount, class T>
__device__ void copy(T* to, const T* row, int column, int columns, bool is_row) {
  constexpr int kBytes = kCount * sizeof(T);
  const T* const from = row + column;
  if constexpr (!kAligned) {
    for (int i = 0; i < kCount; ++i) to[i] = is_row && column + i < columns ? from[i] : T(0.f);
  } else if constexpr (kBytes == 8) {  // columns is a multiple of kCount
    __pipeline_memcpy_async(to, from, kBytes, is_row && column < columns ? 0 : kBytes);
  } else {
    constexpr int kWidth = kVectorWidth<T>;
    for (int i = 0; i < kCount; i += kWidth) copy_async(to + i, from + i, is_row && column < columns);
  }
}

// The most that a block may have on every GPU is 99 KiB; with half of it, two blocks share a multiprocessor of sm_90.
constexpr int kPipelineBytes = 96 << 10, kMostStages = 4;

constexpr int kLogitWarps = 8, kLogitTokens = 32;

template <class W, int kExperts>
struct LogitStage {
  Vector<bf16, 8> x[kLogitTokens / 8][kWarp];
  Vector<W, 8> weight[kExperts / 8][kWarp];
};
template <class W, int kExperts>
inline constexpr int kLogitStages = std::min<int>(kMostStages,
                                                  kPipelineBytes / (kLogitWarps * sizeof(LogitStage<W, kExperts>)));

// Adds the sums that the warps of a block have of the same kRows x kColumns elements, in order. store(sums) writes
// those of a warp to shared memory, where what was there is no longer used; write(row, column, sum) gets the totals.
template <int kWarps, int kColumns, int kRows, int kPitch, class Store, class Write>
__device__ void add_warps(float (*of_warps)[kRows][kPitch], const Store& store, const Write& write) {
  __syncthreads();
  store(of_warps[threadIdx.x / kWarp]);
  __syncthreads();
  for (int i = threadIdx.x; i < kRows * kColumns; i += kWarps * kWarp) {
    const int row = i / kColumns, column = i % kColumns;
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += of_warps[warp][row][column];
    write(row, column, sum);
  }
}

// The sums of 32 tokens times kExperts experts. The tensor cores truncate their sums: small parts have their own.
template <int kExperts>
struct LogitSums {
  static constexpr int kRows = kLogitTokens / 16, kTiles = kExperts / 8;
  Accumulator large[kRows][kTiles], small[kRows][kTiles];

  template <class W>
  __device__ void add_stage(const LogitStage<W, kExperts>& stage) {
    const int own = lane_id();
    Vector<bf16, 8> rows[2 * kRows];
#pragma unroll
    for (int i = 0; i < 2 * kRows; ++i) rows[i] = stage.x[i][own];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const Vector<W, 8> w = stage.weight[tile][own];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const W* four = w.values + 4 * half;
        const Pair<kExactParts<W>> low(four[0], four[1]), high(four[2], four[3]);
#pragma unroll
        for (int part = 0; part < kExactParts<W>; ++part)
#pragma unroll
          for (int m = 0; m < kRows; ++m)
            multiply_half(part == 0 ? large[m][tile] : small[m][tile],
                          {pair_of(rows[2 * m], 2 * half), pair_of(rows[2 * m + 1], 2 * half),
                           pair_of(rows[2 * m], 2 * half + 1), pair_of(rows[2 * m + 1], 2 * half + 1)},
                          low.parts[part], high.parts[part]);
      }
    }
  }

  __device__ void store(float (&to)[kLogitTokens][kExperts]) const {
#pragma unroll
    for (int m = 0; m < kRows; ++m)
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          to[m * 16 + i / 2 * 8 + row_of_lane()][tile * 8 + column_of_lane() + i % 2] =
              large[m][tile].values[i] + small[m][tile].values[i];
  }
};

// A block computes 32 tokens times kExperts experts. Its warps share the features: a step of a warp takes
// 32 of them, eight neighbours per lane. Shared: the stages; then the sums of each warp, which are added in order.
template <class W, bool kAligned, int kExperts>
__global__ void __launch_bounds__(kLogitWarps* kWarp) logits_of(Tokens x, const W* weight, int experts, float* logits) {
  wait_for_previous();
  constexpr int kStages = kLogitStages<W, kExperts>;
  extern __shared__ __align__(1024) char memory[];
  const int warp = threadIdx.x / kWarp, own = lane_id(), columns = static_cast<int>(x.columns);
  auto* const stages = reinterpret_cast<LogitStage<W, kExperts>*>(memory) + warp * kStages;
  const std::int64_t first_token = std::int64_t{blockIdx.x} * kLogitTokens;
  const int first_expert = static_cast<int>(blockIdx.y) * kExperts;
  const auto copy_step = [&](std::int64_t step, int stage) {
    const int column = (static_cast<int>(step) * kLogitWarps + warp) * kWarp + own % 4 * 8;
#pragma unroll
    for (int i = 0; i < kLogitTokens / 8; ++i) {
      const std::int64_t token = first_token + i * 8 + row_of_lane();
      copy<kAligned, 8>(stages[stage].x[i][own].values, x.data + token * x.stride, column, columns, token < x.rows);
    }
#pragma unroll
    for (int tile = 0; tile < kExperts / 8; ++tile) {
      const int expert = first_expert + tile * 8 + row_of_lane();
      copy<kAligned, 8>(stages[stage].weight[tile][own].values, weight + expert * x.columns, column, columns,
                        expert < experts);
    }
  };
  LogitSums<kExperts> sums;
  const std::int64_t steps = blocks_for(max(x.columns - warp * kWarp, std::int64_t{0}), kLogitWarps * kWarp);
  pipeline<kStages>(steps, copy_step, [&](std::int64_t, int stage) { sums.add_stage(stages[stage]); });

  const auto store = [&](float(&to)[kLogitTokens][kExperts]) { sums.store(to); };
  const auto write = [&](int row, int column, float sum) {
    if (first_token + row < x.rows && first_expert + column < experts)
      logits[(first_token + row) * experts + first_expert + column] = sum;
  };
  add_warps<kLogitWarps, kExperts>(reinterpret_cast<float(*)[kLogitTokens][kExperts]>(memory), store, write);
}

// Eight neighbours of a row, as words, so that pairs of bf16 numbers stay together.
template <class T>
using Eight = Vector<unsigned, 8 * sizeof(T) / sizeof(unsigned)>;

// Neighbours of a row, zeros beyond its end.
template <bool kAligned, class Values, class T>
__device__ Values load(const T* row, int column, int columns, bool is_row) {
  constexpr int kCount = sizeof(Values) / sizeof(T), kWidth = kAligned ? kVectorWidth<T> : 1;
  Values values = {};
#pragma unroll
  for (int i = 0; i < kCount; i += kWidth)
    if (is_row && column + i < columns)
      reinterpret_cast<Vector<T, kWidth>*>(&values)[i / kWidth] = Vector<T, kWidth>::load(row + column + i);
  return values;
}

template <bool kAligned>
__device__ void store_eight(const Eight<bf16>& values, bf16* row, int column, int columns) {
  constexpr int kWidth = kAligned ? 8 : 1;
#pragma unroll
  for (int i = 0; i < 8; i += kWidth)
    if (column + i < columns)
      reinterpret_cast<const Vector<bf16, kWidth>*>(&values)[i / kWidth].store(row + column + i);
}

// 64 features times 16 experts as the left factors of four products: rows g and g + 8 of product j are features
// 8 g + 2 j and the next; inner index 2 q, 2 q + 1, 2 q + 8, 2 q + 9 is expert 4 q, ..., 4 q + 3. bf16 results need two
// parts of each fp32 factor.
template <class W>
struct WeightFragments {
  static constexpr int kParts = kExactParts<W> == 1 ? 1 : 2;
  Fragment parts[kParts][4];

  __device__ explicit WeightFragments(const Eight<W> (&experts)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Eight<W>&low = experts[i / 2 * 2], &high = experts[i / 2 * 2 + 1];
        if constexpr (kParts == 1) {
          parts[0][j].values[i] = __byte_perm(low.values[j], high.values[j], i % 2 == 0 ? 0x5410 : 0x7632);
        } else {
          const int at = 2 * j + i % 2;
          const Pair<2> pair(__uint_as_float(low.values[at]), __uint_as_float(high.values[at]));
          parts[0][j].values[i] = pair.parts[0];
          parts[1][j].values[i] = pair.parts[1];
        }
      }
  }

  // sums += weights gradients^T for eight tokens. A lane has the gradients of one token for four experts.
  __device__ void add_products(Accumulator (&sums)[4], const Vector<float, 4>& gradients) const {
    const float* const four = gradients.values;
    const Pair<2> low(four[0], four[1]), high(four[2], four[3]);
#pragma unroll
    for (int part = kParts - 1; part >= 0; --part)
#pragma unroll
      for (int of_gradient = 1 - part; of_gradient >= 0; --of_gradient)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          multiply_half(sums[j], parts[part][j], low.parts[of_gradient], high.parts[of_gradient]);
  }
};

// A block has 2 x 2 warps, each with 64 features of groups of eight tokens. A lane has eight neighbouring features of
// two tokens of each group.
constexpr int kGradWarps = 4, kGradColumns = 128;
template <bool kFew>
inline constexpr int kWarpTokens = kFew ? 16 : 32;

template <bool kAligned, int kGroups>
__device__ void load_added(Eight<bf16> (&values)[kMostAdded][kGroups][2], const AddedGradients& added,
                           std::int64_t first_token, std::int64_t tokens, int column, int columns) {
#pragma unroll
  for (int user = 0; user < kMostAdded; ++user)
#pragma unroll
    for (int i = 0; i < 2 * kGroups; ++i) {
      const Tokens& other = added.of_users[user];
      const std::int64_t token = first_token + i / 2 * 8 + i % 2;
      values[user][i / 2][i % 2] =
          load<kAligned, Eight<bf16>>(other.data + token * other.stride, column, columns, other.data && token < tokens);
    }
}

// The sums of eight features of one of a lane's two tokens, plus the added gradients.
__device__ Eight<bf16> add_up(const Accumulator (&sums)[4], int side, const Eight<bf16>& first,
                              const Eight<bf16>& second) {
  static_assert(kMostAdded == 2);
  Eight<bf16> result;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float2 a = unpack(first.values[j]), b = unpack(second.values[j]);
    result.values[j] = pack(sums[j].values[side] + a.x + b.x, sums[j].values[side + 2] + a.y + b.y);
  }
  return result;
}

// Many experts take long enough that the added gradients are loaded after them, which leaves registers for more tokens.
template <class W, bool kAligned, bool kFew>
__global__ void __launch_bounds__(kGradWarps* kWarp, kFew ? 4 : 3)
    x_gradients(const float* grad, const W* weight, int experts, AddedGradients added, Matrix<bf16> x_grad) {
  wait_for_previous();
  constexpr int kGroups = kWarpTokens<kFew> / 8;
  const int warp = threadIdx.x / kWarp, columns = static_cast<int>(x_grad.columns);
  const auto across = static_cast<unsigned>(blocks_for(columns, kGradColumns));
  const int column = static_cast<int>(blockIdx.x % across) * kGradColumns + warp % 2 * 64 + row_of_lane() * 8;
  const std::int64_t first_token = (std::int64_t{blockIdx.x / across} * 2 + warp / 2) * kWarpTokens<kFew>;
  const std::int64_t own_token = first_token + column_of_lane();
  Eight<bf16> others[kMostAdded][kGroups][2];
  if constexpr (kFew) load_added<kAligned>(others, added, own_token, x_grad.rows, column, columns);
  Accumulator sums[kGroups][4];
#pragma unroll 1
  for (int first = 0; first < experts; first += 16) {
    const int expert = first + lane_id() % 4 * 4;
    Vector<float, 4> gradients[kGroups];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const std::int64_t token = first_token + group * 8 + row_of_lane();
      gradients[group] = load<kAligned, Vector<float, 4>>(grad + token * experts, expert, experts, token < x_grad.rows);
    }
    Eight<W> of_experts[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      of_experts[i] =
          load<kAligned, Eight<W>>(weight + std::int64_t{expert + i} * columns, column, columns, expert + i < experts);
    const WeightFragments<W> weights(of_experts);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) weights.add_products(sums[group], gradients[group]);
  }
  if constexpr (!kFew) load_added<kAligned>(others, added, own_token, x_grad.rows, column, columns);
#pragma unroll
  for (int group = 0; group < kGroups; ++group)
#pragma unroll
    for (int side = 0; side < 2; ++side)
      if (const std::int64_t token = own_token + group * 8 + side; token < x_grad.rows)
        store_eight<kAligned>(add_up(sums[group], side, others[0][group][side], others[1][group][side]),
                              x_grad.data + token * x_grad.stride, column, columns);
}

// About three blocks for each multiprocessor of an H100; a constant, so that results do not depend on the GPU.
constexpr int kPartBlocks = 384, kPartColumns = 64, kPartWarps = 8;

// 16 kTiles experts times 64 kTiles features over some tokens. Each warp takes every kWarps-th group of 16 tokens. Row
// g or g + 8 of tile m is expert 2 kTiles g + 2 m or the next, so that a lane loads neighbours.
template <bool kAligned, int kTiles>
struct WeightPart {
  static constexpr int kExperts = 16 * kTiles, kColumns = kPartColumns * kTiles, kWarps = kPartWarps / kTiles;
  static constexpr int kOwnExperts = 2 * kTiles, kStages = 3;
  struct alignas(1024) Stage {  // as Tile wants
    bf16 x[kTiles][16 * 64];
    Vector<float, kOwnExperts> grad[4][kWarp];
  };
  // The sums of a warp; of a width that spreads the rows of a warp's stores over all banks.
  using Sums = float[kExperts][kColumns + 4 / kTiles];
  static constexpr int kBytes = kStages * kWarps * sizeof(Stage);
  static_assert(kWarps * sizeof(Sums) <= kBytes);

  const bf16* x;
  const float* grad;
  std::int64_t stride;
  int tokens, columns, experts, first_column, first_expert;
  Accumulator sums[kTiles][kColumns / 8] = {};

  // The 16 tokens from `first`.
  __device__ void copy_group(Stage& stage, int first) const {
    const int lane = lane_id(), unit = lane % 8, expert = first_expert + row_of_lane() * kOwnExperts;
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) {
      const int row = lane / 8 + i % 4 * 4, column = first_column + i / 4 * 64 + unit * 8;
      copy<kAligned, 8>(Tile<64>{stage.x[i / 4]}.unit(row, unit), x + (first + row) * stride, column, columns,
                        first + row < tokens);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = first + i / 2 * 8 + column_of_lane() + i % 2;
      copy<kAligned, kOwnExperts>(stage.grad[i][lane].values, grad + std::int64_t{token} * experts, expert, experts,
                                  token < tokens);
    }
  }

  __device__ void add_group(const Stage& stage) {
    Fragment parts[kTiles][3];
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto gradient = [&](int next) { return stage.grad[i / 2 * 2 + next][lane_id()].values[2 * m + i % 2]; };
        const Pair<3> pair(gradient(0), gradient(1));
#pragma unroll
        for (int part = 0; part < 3; ++part) parts[m][part].values[i] = pair.parts[part];
      }
#pragma unroll
    for (int j = 0; j < kColumns / 8; j += 2) {
      const Fragment features = right(Tile<64>{const_cast<bf16*>(stage.x[j / 8])}, 0, j % 8 * 8);
#pragma unroll
      for (int part = 2; part >= 0; --part)  // the smallest part first, which loses least to truncation
#pragma unroll
        for (int m = 0; m < kTiles; ++m) multiply_add(&sums[m][j], parts[m][part], features);
    }
  }

  __device__ void store(Sums& to) const {
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          const float* const pair = sums[m][j].values + i;
          float* const row = to[row_of_lane() * kOwnExperts + 2 * m + i / 2];
          *reinterpret_cast<float2*>(row + j * 8 + column_of_lane()) = {pair[0], pair[1]};
        }
  }
};

// Block (c, p, e) computes some experts times some features over the p-th part of the tokens. Shared: the stages; then
// the sums of each warp, which are added in order.   partials: [parts, E, H]
template <bool kAligned, int kTiles>
__global__ void __launch_bounds__(WeightPart<kAligned, kTiles>::kWarps* kWarp, 3)
    weight_gradients(const float* grad, Tokens x, int experts, std::int64_t per_part, float* partials) {
  wait_for_previous();
  using Part = WeightPart<kAligned, kTiles>;
  extern __shared__ __align__(1024) char memory[];
  const int warp = threadIdx.x / kWarp;
  const std::int64_t begin = blockIdx.y * per_part;
  const int tokens = static_cast<int>(min(per_part, x.rows - begin)), columns = static_cast<int>(x.columns);
  Part part = {x.data + begin * x.stride,
               grad + begin * experts,
               x.stride,
               tokens,
               columns,
               experts,
               static_cast<int>(blockIdx.x) * Part::kColumns,
               static_cast<int>(blockIdx.z) * Part::kExperts};
  auto* const stages = reinterpret_cast<typename Part::Stage*>(memory) + warp * Part::kStages;
  const auto copy_step = [&](std::int64_t step, int stage) {
    part.copy_group(stages[stage], (static_cast<int>(step) * Part::kWarps + warp) * 16);
  };
  const auto multiply = [&](std::int64_t, int stage) {
    __syncwarp();  // a warp shares its stages
    part.add_group(stages[stage]);
    __syncwarp();
  };
  const int groups = (tokens + 15) / 16 - warp;
  pipeline<Part::kStages>((groups + Part::kWarps - 1) / Part::kWarps, copy_step, multiply);

  const auto store = [&](typename Part::Sums& to) { part.store(to); };
  const auto write = [&](int row, int column, float sum) {
    const int expert = part.first_expert + row, feature = part.first_column + column;
    if (expert < experts && feature < columns)
      partials[(blockIdx.y * std::int64_t{experts} + expert) * columns + feature] = sum;
  };
  add_warps<Part::kWarps, Part::kColumns>(reinterpret_cast<typename Part::Sums*>(memory), store, write);
}

constexpr int kThreads = 256;

// y[i] = the sum over parts, plus y[i] if `add`. Unlike sum_rows(), for few parts and many sums.
// partials: [parts, count]
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

// Whether rows, of bf16 and of float, are whole vectors.
bool has_eights(const Tensor& x) { return x.columns() % 8 == 0 && is_aligned(x); }
bool has_fours(const Tensor& x) { return x.columns() % 4 == 0 && is_aligned(x); }

// A block has one or two tiles of 16 experts; more would need more shared memory.
constexpr int tiles_of(int experts) { return experts <= 16 ? 1 : 2; }

std::int64_t tokens_per_part(std::int64_t tokens, std::int64_t columns, int experts) {
  const std::int64_t tiles = tiles_of(experts), least = kPartWarps / tiles * 16;
  const std::int64_t others = blocks_for(columns, kPartColumns * tiles) * blocks_for(experts, 16 * tiles);
  const std::int64_t parts = std::max<std::int64_t>(1, kPartBlocks / std::max<std::int64_t>(1, others));
  return std::max(least, blocks_for(tokens, parts * 16) * 16);
}

// call.operator()<kAligned, kTiles>()
template <class Call>
void with_variant(bool aligned, int experts, const Call& call) {
  const bool one = tiles_of(experts) == 1;
  if (aligned)
    one ? call.template operator()<true, 1>() : call.template operator()<true, 2>();
  else
    one ? call.template operator()<false, 1>() : call.template operator()<false, 2>();
}

}  // namespace

void router_logits(const Tensor& x, const Tensor& weight, const Tensor& logits, const Queue& queue) {
  const auto experts = static_cast<int>(weight.rows());
  with_type(weight, [&]<class W>() {
    with_variant(has_eights(x) && is_aligned(weight), experts, [&]<bool kAligned, int kTiles>() {
      constexpr int kExperts = 16 * kTiles;
      constexpr std::size_t kBytes = sizeof(LogitStage<W, kExperts>) * kLogitStages<W, kExperts> * kLogitWarps;
      const dim3 blocks(blocks_for(x.rows(), kLogitTokens), blocks_for(experts, kExperts));
      launch_kernel(logits_of<W, kAligned, kExperts>, {blocks, kLogitWarps * kWarp, kBytes, queue}, x, weight, experts,
                    logits);
    });
  });
}

void router_logits_x_grad(const Tensor& grad, const Tensor& weight, const Tensor& added, const Tensor& more,
                          const Tensor& x_grad, const Queue& queue) {
  const auto experts = static_cast<int>(weight.rows());
  const bool aligned = has_eights(x_grad) && has_fours(grad) && are_aligned({weight, added, more});
  with_type(weight, [&]<class W>() {
    with_variant(aligned, experts, [&]<bool kAligned, int kTiles>() {
      constexpr bool kFew = kTiles == 1;
      const std::int64_t blocks =
          blocks_for(x_grad.columns(), kGradColumns) * blocks_for(x_grad.rows(), 2 * kWarpTokens<kFew>);
      launch_kernel(x_gradients<W, kAligned, kFew>, {blocks, kGradWarps * kWarp, 0, queue}, grad, weight, experts,
                    AddedGradients{added, more}, x_grad);
    });
  });
}

void router_logits_weight_grad(const Tensor& grad, const Tensor& x, const Tensor& weight_grad, bool add,
                               const Queue& queue) {
  const auto experts = static_cast<int>(weight_grad.rows());
  const std::int64_t columns = x.columns(), count = experts * columns;
  if (count == 0) return;
  const std::int64_t per_part = tokens_per_part(x.rows(), columns, experts), parts = blocks_for(x.rows(), per_part);
  float* const partials = queue.scratch<float>(parts * count);
  with_variant(has_eights(x) && has_fours(grad), experts, [&]<bool kAligned, int kTiles>() {
    using Part = WeightPart<kAligned, kTiles>;
    const dim3 blocks(blocks_for(columns, Part::kColumns), parts, blocks_for(experts, Part::kExperts));
    launch_kernel(weight_gradients<kAligned, kTiles>, {blocks, Part::kWarps * kWarp, Part::kBytes, queue}, grad, x,
                  experts, per_part, partials);
  });
  with_type(weight_grad, [&]<class W>() {
    launch_kernel(sum_parts<W>, {blocks_for(count, kThreads), kThreads, 0, queue}, partials, parts, count, weight_grad,
                  add);
  });
}

}  // namespace braid::kernels
