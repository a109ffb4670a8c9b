// What the forward and the backward kernels of the SSD scan share. A block works on one chunk of kSsdChunk slots; slots
// beyond the chunk's tokens have x = B = C = dt = 0 and have no effect.
#pragma once

#include "kernels/device.cuh"
#include "kernels/hopper.cuh"
#include "kernels/mamba.h"

namespace braid::kernels::ssd {

// Products of 64 x 64 elements by a warpgroup, with the operands of tensor_core.cuh: by Hopper's wgmma, which reads
// shared memory itself and runs asynchronously, else by each warp's mma.sync. A warp has the accumulators of 16 rows.
//
// Layout. An operand is stored as panels of 64 columns, one after another: a row of a panel is 128 bytes, permuted by
// Tile as wgmma expects it, so that both kinds of products read the same memory. cp.async fills it, on every GPU.
// Pipeline. copies_arrived(), publish_copies() and a barrier come before begin_product(), which returns while wgmma
// still runs; the warpgroup may then start the copies of the next stage, and calls wait_for_sums() before it reads
// them.

constexpr int kPanel = 64;  // columns

// A matrix of kRows rows in panels of 64 columns, one after another.
template <int kRows, int kColumns>
struct Panels {
  bf16* data;

  __device__ Panels<kRows, kPanel> panel(int i) const { return {data + i * kRows * kPanel}; }
  __device__ Tile<kPanel> tile(int i) const { return {panel(i).data}; }
  __device__ unsigned address(int row, int unit, int lane_row, int lane_unit) const {
    constexpr int kUnits = Tile<kPanel>::kUnits;
    return tile(unit / kUnits).address(row, unit % kUnits, lane_row, lane_unit);
  }
  __device__ Panels from_row(int row) const { return {data + row * kPanel}; }

  // What a product of a warpgroup reads at depth k: the depth runs along the rows, or down the rows of one panel.
  template <bool kDepthMajor>
  __device__ std::uint64_t descriptor(int k) const {
    using Side = Operand<kDepthMajor, kRows>;
    static_assert(kDepthMajor || kColumns == kPanel);
    const int panel = kDepthMajor ? k / kPanel : 0;
    return Side::descriptor(tile(panel).data) + (k - panel * kPanel) / kMma * Side::kStep;
  }
};

template <int kThreads, int kRows, int kColumns>
__device__ void load_panels(Panels<kRows, kColumns> to, const bf16* from, std::int64_t stride, int valid) {
#pragma unroll
  for (int i = 0; i < kColumns / kPanel; ++i) load_tile<kRows, kThreads>(to.tile(i), from + i * kPanel, stride, valid);
}

// Makes copies to shared memory, after copies_arrived(), visible to products of warpgroups.
__device__ inline void publish_copies() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  publish_stores();
#endif
}

// Begins sums = rows right, or rows right^T, over kDepth columns of 64 rows. The operands must be published, and
// wait_for_sums() comes before a use of the sums.
template <bool kTransposed, int kDepth, int kRows, class Right>
__device__ void begin_product(Accumulator (&sums)[8], Panels<kRows, kDepth> rows, Right right_side) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  begin_products();
#pragma unroll
  for (int k = 0; k < kDepth; k += kMma)
    multiply<true, kTransposed>(sums, rows.template descriptor<true>(k), right_side.template descriptor<kTransposed>(k),
                                k > 0);
  end_products();
#else
  const auto own_rows = rows.from_row(threadIdx.x % kWarpgroup / kWarp * kMma);
  for (Accumulator& sum : sums) sum = {};
#pragma unroll
  for (int k = 0; k < kDepth; k += kMma) {
    const Fragment row = left(own_rows, 0, k);
#pragma unroll
    for (int n = 0; n < kPanel; n += kMma)
      multiply_add(&sums[n / 8], row, kTransposed ? right_transposed(right_side, k, n) : right(right_side, k, n));
  }
#endif
}

__device__ inline void wait_for_sums(Accumulator (&sums)[8]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  wait_for_products<0>();
#pragma unroll
  for (Accumulator& sum : sums) hold(sum.values);
#endif
}

constexpr int kSlots = kSsdChunk;
constexpr int kTiles = kSlots / kMma;
constexpr int kPassedElements = 256;  // of a state, for one number of `passed`

// Rows are `stride` elements apart.
struct Numbers : Parameter {
  std::int64_t stride;

  Numbers(const Tensor& x) : Parameter(x), stride(x.strides[0]) {}
};

struct Inputs {
  Matrix<bf16> x, B, C;  // [T, h * p], [T, g * n]
  Numbers dt;            // [T, h]
  Numbers A_log, D, dt_bias;

  explicit Inputs(const SsdTensors& in)
      : x(in.x), B(in.B), C(in.C), dt(in.dt), A_log(in.A_log), D(in.D), dt_bias(in.dt_bias) {}
};

struct SsdChunk {
  int begin, tokens;  // first token, how many
  int sequence;
  int place;  // kFirstChunk and kLastChunk
};

// Null: zeros enter, and what leaves is dropped.
struct Border {
  const float* enter;
  float* leave;
};

// softplus(raw), with libtorch's threshold.
__device__ inline float softplus(float raw) { return raw > 20 ? raw : log1pf(expf(raw)); }

// Bits of a chunk's place: it is the first or the last of its sequence.
constexpr int kFirstChunk = 1, kLastChunk = 2;

// Of one head in one chunk, per slot: s, the running sum of s A, and the decays since the tile of 16 slots began and
// until it ends. Between slots of different tiles, exp(sum_i - sum_j) is the product of those two and of the decay
// between the tiles, and no factor exceeds 1.
struct Steps {
  float step[kSlots], sum[kSlots], from_tile[kSlots], to_tile[kSlots];

  // From the end of one tile to the begin of a later one.
  __device__ float between(int from, int to) const {
    return fast_exp(sum[to * kMma - 1] - sum[from * kMma + kMma - 1]);
  }
};
static_assert(sizeof(Steps) == kSsdStepFloats * sizeof(float));

template <int kThreads>
__device__ void load_steps(Steps& to, const Steps* from) {
  constexpr int kUnits = sizeof(Steps) / 16;
  static_assert(kThreads >= kUnits);
  const int offset = threadIdx.x * 16;
  if (threadIdx.x < kUnits)
    copy_async(reinterpret_cast<char*>(&to) + offset, reinterpret_cast<const char*>(from) + offset);
}

// A warp computes one head, four slots per lane. Global tensors [T, h] have heads contiguous, so threads load and store
// (slot, head) pairs in that order and exchange them through shared memory.
constexpr int kStepHeads = 8, kStepThreads = kStepHeads * kWarp, kPerLane = kSlots / kWarp;
struct alignas(16) TransposedSteps {  // neither side meets a bank twice
  float values[kStepHeads][kSlots + kPerLane];
};

__device__ inline int loaded_head() { return threadIdx.x % kStepHeads; }
__device__ inline int loaded_slot(int i) { return threadIdx.x / kStepHeads + i * kWarp; }
__device__ inline bool has_number(int i, const SsdChunk& chunk, const SsdSizes& sizes) {
  return loaded_slot(i) < chunk.tokens && blockIdx.y * kStepHeads + loaded_head() < sizes.heads;
}
__device__ inline std::int64_t loaded_offset(int i, const SsdChunk& chunk, std::int64_t stride) {
  return (chunk.begin + loaded_slot(i)) * stride + blockIdx.y * kStepHeads + loaded_head();
}

// A thread's numbers; zeros for those that do not exist.
__device__ inline void load_numbers(float (&to)[kPerLane], const Numbers& from, const SsdChunk& chunk,
                                    const SsdSizes& sizes) {
  const auto load = [&]<class T>(const T* data) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      to[i] = has_number(i, chunk, sizes) ? to_float(data[loaded_offset(i, chunk, from.stride)]) : 0;
  };
  from.is_float ? load(static_cast<const float*>(from.data)) : load(static_cast<const bf16*>(from.data));
}

// The tile of 16 rows that a warp of a block of 8 works on. Causal products have 1 to 8 tiles per row of tiles; warps w
// and w + 4, which share a scheduler, have 9 together.
__device__ inline int tile_of_warp() {
  const int warp = threadIdx.x / kWarp;
  return warp < kTiles / 2 ? warp : kTiles * 3 / 2 - 1 - warp;
}

// Rows of one chunk in the order of the tiles that a block's 8 warps work on, so that a warpgroup's are together.
template <int kThreads, int kColumns>
__device__ void load_in_order_of_warps(Panels<kSlots, kColumns> to, const bf16* from, std::int64_t stride, int valid) {
  constexpr int kUnits = Tile<kPanel>::kUnits, kReversed = (kTiles / 2 - 1) * kMma;
  const int first = threadIdx.x / kUnits, unit = threadIdx.x % kUnits;
#pragma unroll
  for (int i = 0; i < kColumns / kPanel; ++i)
#pragma unroll
    for (int rows = 0; rows < kSlots; rows += kThreads / kUnits) {
      const int row = rows + first, place = rows < kSlots / 2 ? row : row ^ kReversed;
      copy_async(to.tile(i).unit(place, unit), from + row * stride + i * kPanel + unit * 8, row < valid);
    }
}

// The place of a warp's rows in that order, and the first of its warpgroup's.
__device__ inline int place_of_warp() { return threadIdx.x / kWarp * kMma; }
__device__ inline int place_of_group() { return threadIdx.x / kWarpgroup * kPanel; }

// 16 rows of scores, one tile of 16 columns per fragment: rows . columns over the state. Two of the first `tiles` tiles
// at a time; the others are zero. Rounded to bf16, which leaves registers for two tiles in flight.
template <int kState>
__device__ void compute_scores(Fragment (&scores)[kTiles], Panels<kSlots, kState> rows, Panels<kSlots, kState> columns,
                               int tiles) {
#pragma unroll
  for (int j = 0; j < kTiles; j += 2) {
    scores[j] = scores[j + 1] = {};
    if (j >= tiles) continue;
    Accumulator sums[4];
#pragma unroll
    for (int k = 0; k < kState; k += kMma) {
      const Fragment row = left(rows, 0, k);
      multiply_add(&sums[0], row, right_transposed(columns, k, j * kMma));
      multiply_add(&sums[2], row, right_transposed(columns, k, (j + 1) * kMma));
    }
    scores[j] = as_left(&sums[0]);
    scores[j + 1] = as_left(&sums[2]);
  }
}

__device__ inline float2 pair_at(const float* values) { return *reinterpret_cast<const float2*>(values); }

// A group's part of the rows of B or C in a chunk.
template <int kState>
__device__ const bf16* group_rows(const Matrix<bf16>& matrix, const SsdChunk& chunk, int group) {
  return matrix.data + chunk.begin * matrix.stride + group * kState;
}

// Multiplies the two rows of a lane, row_of_lane() and the one 8 below, by a factor each.
template <int kCount>
__device__ void scale_rows(Accumulator (&sums)[kCount], const float (&factors)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
#pragma unroll
    for (int v = 0; v < 4; ++v) sums[i].values[v] *= factors[v / 2];
}

// One of these two rows, 16 columns of it.
__device__ inline void store_sums(bf16* row, const Accumulator* sums, int below, bool valid) {
  const float *a = sums[0].values + 2 * below, *b = sums[1].values + 2 * below;
  store_row(row, {a[0], a[1]}, {b[0], b[1]}, valid);
}

// A warp's rows of y or of the gradient of x, those from first_row in a chunk and a head: sums + skip other, where
// `other` begins at first_row, too.
template <int kWidth>
__device__ void store_head(const Matrix<bf16>& to, const SsdChunk& chunk, int head, int first_row,
                           const Accumulator (&sums)[kWidth / 8], float skip, Tile<kWidth> other) {
  Fragment others[kWidth / kMma];
#pragma unroll
  for (int p = 0; p < kWidth / kMma; ++p) others[p] = left(other, 0, p * kMma);
#pragma unroll
  for (int below = 0; below < 2; ++below) {
    const int slot = first_row + row_of_lane() + 8 * below;
    bf16* row = to.data + (chunk.begin + slot) * to.stride + head * kWidth;
#pragma unroll
    for (int p = 0; p < kWidth / kMma; ++p) {
      const float *a = sums[2 * p].values + 2 * below, *b = sums[2 * p + 1].values + 2 * below;
      const float2 low = unpack(others[p].values[below]), high = unpack(others[p].values[2 + below]);
      store_row(row + p * kMma, {a[0] + skip * low.x, a[1] + skip * low.y},
                {b[0] + skip * high.x, b[1] + skip * high.y}, slot < chunk.tokens);
    }
  }
}

void fill_steps(const Inputs& in, const SsdSizes& sizes, const SsdChunk* chunks, Steps* steps, const Queue& queue);

// Forward: what each chunk adds to the state, sum_j exp(sum_end - sum_j) s_j x_j B_j^T, from (x, B).
// Backward: what it adds to the gradient of the state before it, sum_i exp(sum_i) grad_i C_i^T, from (grad, C).
enum class Direction { Forward, Backward };
template <Direction kDirection>
void chunk_states(const Matrix<bf16>& rows, const Matrix<bf16>& columns, const SsdSizes& sizes, const SsdChunk* chunks,
                  const Steps* steps, bf16* states, const Queue& queue);

// Replaces what each chunk adds by the sum of all that was added before it in its sequence (forward), or after it
// (backward), decayed. Backward also sums the products of these gradients with the states before the chunks, in parts
// of kPassedElements.
template <Direction kDirection>
void pass_states(const SsdSizes& sizes, const SsdChunk* chunks, const Steps* steps, const Border& border, bf16* states,
                 const bf16* before, float* passed, const Queue& queue);

}  // namespace braid::kernels::ssd
