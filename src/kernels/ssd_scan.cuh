// What the forward and the backward kernels of the SSD scan share. A block works on one chunk of kSsdChunk slots; slots
// beyond the chunk's tokens have x = B = C = dt = 0 and have no effect.
#pragma once

#include "kernels/device.cuh"
#include "kernels/mamba.h"
#include "kernels/warpgroup.cuh"

namespace braid::kernels::ssd {

constexpr int kSlots = kSsdChunk;
constexpr int kTiles = kSlots / kMma;

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

inline Steps* step_table(const SsdScratch& scratch) { return reinterpret_cast<Steps*>(scratch.steps); }

void fill_steps(const SsdTensors& in, const SsdSizes& sizes, const SsdChunk* chunks, const SsdScratch& scratch,
                cudaStream_t stream);

// Forward: what each chunk adds to the state, sum_j exp(sum_end - sum_j) s_j x_j B_j^T, from (x, B).
// Backward: what it adds to the gradient of the state before it, sum_i exp(sum_i) grad_i C_i^T, from (grad, C).
enum class Direction { Forward, Backward };
template <Direction kDirection>
void chunk_states(Matrix<bf16> rows, Matrix<bf16> columns, const SsdSizes& sizes, const SsdChunk* chunks,
                  const SsdScratch& scratch, bf16* states, cudaStream_t stream);

// Replaces what each chunk adds by the sum of all that was added before it in its sequence (forward), or after it
// (backward), decayed. Backward also sums the products of these gradients with the states before the chunks, in parts
// of kSsdPassed elements.
template <Direction kDirection>
void pass_states(const SsdSizes& sizes, const SsdChunk* chunks, const SsdScratch& scratch,
                 const SsdBorderStates& border, bf16* states, const bf16* before, cudaStream_t stream);

inline dim3 grid_of(std::int64_t x, std::int64_t y = 1, std::int64_t z = 1) {
  return {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
}

}  // namespace braid::kernels::ssd
