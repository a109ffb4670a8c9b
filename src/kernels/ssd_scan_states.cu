#include "kernels/ssd_scan.cuh"

namespace braid::kernels::ssd {
namespace {

// A block has 32 heads of a chunk, a thread one head in one tile of 16 slots.
constexpr int kStepHeads = 32;
__global__ void __launch_bounds__(kStepHeads* kTiles)
    steps_of(SsdTensors in, SsdSizes sizes, const SsdChunk* table, Steps* all_steps) {
  __shared__ float tile_sums[kTiles][kStepHeads];
  const int column = threadIdx.x % kStepHeads, tile = threadIdx.x / kStepHeads;
  const std::int64_t head = std::int64_t{blockIdx.y} * kStepHeads + column;
  const SsdChunk chunk = table[blockIdx.x];
  const bool valid = head < sizes.heads;
  const float bias = valid ? value_at(in.dt_bias, head) : 0, A = valid ? -expf(value_at(in.A_log, head)) : 0;
  const int tokens = valid ? chunk.tokens - tile * kMma : 0;  // of this tile
  const std::int64_t first = (std::int64_t{chunk.begin} + tile * kMma) * in.dt.stride + head;
  float step[kMma], sum[kMma];
  const auto load = [&]<class T>(const T* dt) {
#pragma unroll
    for (int i = 0; i < kMma; ++i) step[i] = i < tokens ? to_float(dt[first + i * in.dt.stride]) : 0;
  };
  in.dt.is_float ? load(static_cast<const float*>(in.dt.data)) : load(static_cast<const bf16*>(in.dt.data));
#pragma unroll
  for (int i = 0; i < kMma; ++i) {
    const float s = softplus(step[i] + bias);
    // Not fminf and fmaxf, which would hide a NaN.
    step[i] = i >= tokens ? 0 : s < sizes.dt_min ? sizes.dt_min : s > sizes.dt_max ? sizes.dt_max : s;
    sum[i] = (i == 0 ? 0 : sum[i - 1]) + step[i] * A;
  }
  tile_sums[tile][column] = sum[kMma - 1];
  __syncthreads();
  if (!valid) return;
  float before = 0;
  for (int i = 0; i < tile; ++i) before += tile_sums[i][column];
  Steps& steps = all_steps[blockIdx.x * sizes.heads + head];
#pragma unroll
  for (int i = 0; i < kMma; i += 4) {
    const int slot = tile * kMma + i;
    const auto write = [&](float* to, auto value) {
      *reinterpret_cast<float4*>(to + slot) = {value(i), value(i + 1), value(i + 2), value(i + 3)};
    };
    write(steps.step, [&](int k) { return step[k]; });
    write(steps.sum, [&](int k) { return before + sum[k]; });
    write(steps.from_tile, [&](int k) { return expf(sum[k]); });
    write(steps.to_tile, [&](int k) { return expf(sum[kMma - 1] - sum[k]); });
  }
}

// A block computes the p x n matrix of one head in one chunk, a product over the slots; 4 warps have a quarter each.
constexpr int kStateThreads = 128;
template <int kWidth, int kState>
struct StateMemory {
  bf16 rows[kSlots * kWidth], columns[kSlots * kState];
  float weights[kSlots];
};

template <Direction kDirection, int kWidth, int kState>
__global__ void __launch_bounds__(kStateThreads, 4)
    add_chunk_states(Matrix<bf16> rows, Matrix<bf16> columns, int heads_per_group, const SsdChunk* table,
                     const Steps* all_steps, bf16* states) {
  extern __shared__ __align__(128) char memory[];
  auto& shared = *reinterpret_cast<StateMemory<kWidth, kState>*>(memory);
  const Tile<kWidth> row_tile{shared.rows};
  const Tile<kState> column_tile{shared.columns};
  const int head = blockIdx.x, group = head / heads_per_group;
  const SsdChunk chunk = table[blockIdx.y];
  const std::int64_t index = std::int64_t{blockIdx.y} * gridDim.x + head;
  load_tile<kSlots, kStateThreads>(row_tile, rows.data + chunk.begin * rows.stride + head * kWidth, rows.stride,
                                   chunk.tokens);
  load_tile<kSlots, kStateThreads>(column_tile, columns.data + chunk.begin * columns.stride + group * kState,
                                   columns.stride, chunk.tokens);
  const Steps& steps = all_steps[index];
  const int slot = threadIdx.x;
  static_assert(kStateThreads == kSlots);
  shared.weights[slot] = kDirection == Direction::Forward
                             ? __expf(steps.sum[kSlots - 1] - steps.sum[slot]) * steps.step[slot]
                             : __expf(steps.sum[slot]);
  copies_arrived();
  __syncthreads();

  constexpr int kRows = kWidth / 2, kColumns = kState / 2;
  const int warp = threadIdx.x / kWarp, first_row = warp / 2 * kRows, first_column = warp % 2 * kColumns;
  Accumulator sums[kRows / kMma][kColumns / 8];
#pragma unroll
  for (int k = 0; k < kSlots; k += kMma) {
    const float2 low = *reinterpret_cast<const float2*>(&shared.weights[k + column_of_lane()]);
    const float2 high = *reinterpret_cast<const float2*>(&shared.weights[k + 8 + column_of_lane()]);
    Fragment weighted[kRows / kMma];
#pragma unroll
    for (int m = 0; m < kRows / kMma; ++m) {
      weighted[m] = left_transposed(row_tile, first_row + m * kMma, k);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack(weighted[m].values[i]), weight = i < 2 ? low : high;
        weighted[m].values[i] = pack(pair.x * weight.x, pair.y * weight.y);
      }
    }
#pragma unroll
    for (int n = 0; n < kColumns / kMma; ++n) {
      const Fragment b = right(column_tile, k, first_column + n * kMma);
#pragma unroll
      for (int m = 0; m < kRows / kMma; ++m) multiply_add(&sums[m][2 * n], weighted[m], b);
    }
  }

  bf16* state = states + index * kWidth * kState;
#pragma unroll
  for (int m = 0; m < kRows / kMma; ++m)
#pragma unroll
    for (int n = 0; n < kColumns / kMma; ++n)
#pragma unroll
      for (int below = 0; below < 2; ++below) {
        const float *a = sums[m][2 * n].values + 2 * below, *b = sums[m][2 * n + 1].values + 2 * below;
        const int row = first_row + m * kMma + row_of_lane() + 8 * below;
        store_row(state + row * kState + first_column + n * kMma, {a[0], a[1]}, {b[0], b[1]}, true);
      }
}

// A thread has 8 elements of the state of one head and walks over all chunks. It reads kAhead chunks while it works on
// the kAhead before them.
constexpr int kPassThreads = 128, kPassWidth = 8, kAhead = 4;
static_assert(kPassWidth * kWarp == kSsdPassed);

struct Ahead {
  Vector<bf16, kPassWidth> added[kAhead], before[kAhead];
  float sum[kAhead];
  SsdChunk chunk[kAhead];
};

template <Direction kDirection>
__global__ void __launch_bounds__(kPassThreads, 4)
    pass(int chunks, int heads, int elements, const SsdChunk* table, const Steps* steps, SsdBorderStates border,
         bf16* states, const bf16* before, float* passed) {
  using Values = Vector<bf16, kPassWidth>;
  constexpr bool kForward = kDirection == Direction::Forward;
  const int head = blockIdx.y, place = (blockIdx.x * kPassThreads + threadIdx.x) * kPassWidth;
  if (place >= elements) return;  // whole warps
  const auto index_at = [&](int step) {
    return static_cast<std::int64_t>(kForward ? step : chunks - 1 - step) * heads + head;
  };
  const auto load = [&](Ahead& ahead, int base) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (base + i >= chunks) break;
      const std::int64_t index = index_at(base + i);
      ahead.added[i] = Values::load(states + index * elements + place);
      if constexpr (!kForward) ahead.before[i] = Values::load(before + index * elements + place);
      ahead.sum[i] = steps[index].sum[kSlots - 1];
      ahead.chunk[i] = table[kForward ? base + i : chunks - 1 - (base + i)];
    }
  };
  float carry[kPassWidth] = {};
  Ahead now, next;
  load(next, 0);
  for (int base = 0; base < chunks; base += kAhead) {
    now = next;
    load(next, base + kAhead);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (base + i >= chunks) break;
      const std::int64_t index = index_at(base + i);
      const SsdChunk& chunk = now.chunk[i];
      const std::int64_t at_border = (std::int64_t{chunk.sequence} * heads + head) * elements + place;
      if (kForward ? is_first(chunk) : is_last(chunk))
        for (int k = 0; k < kPassWidth; ++k) carry[k] = border.enter == nullptr ? 0 : border.enter[at_border + k];
      Values arrived;
      float product = 0;
      const float decay = __expf(now.sum[i]);
#pragma unroll
      for (int k = 0; k < kPassWidth; ++k) {
        arrived.values[k] = from_float<bf16>(carry[k]);
        if constexpr (!kForward) product += carry[k] * to_float(now.before[i].values[k]);
        carry[k] = carry[k] * decay + to_float(now.added[i].values[k]);
      }
      arrived.store(states + index * elements + place);
      if constexpr (!kForward) {
        product = warp_sum(product);
        if (lane_id() == 0) passed[index * (elements / kSsdPassed) + place / kSsdPassed] = product * decay;
      }
      if (border.leave != nullptr && (kForward ? is_last(chunk) : is_first(chunk)))
        for (int k = 0; k < kPassWidth; ++k) border.leave[at_border + k] = carry[k];
    }
  }
}

}  // namespace

void fill_steps(const SsdTensors& in, const SsdSizes& sizes, const SsdChunk* chunks, const SsdScratch& scratch,
                cudaStream_t stream) {
  steps_of<<<grid_of(sizes.chunks, blocks_for(sizes.heads, kStepHeads)), kStepHeads * kTiles, 0, stream>>>(
      in, sizes, chunks, step_table(scratch));
}

template <Direction kDirection>
void chunk_states(Matrix<bf16> rows, Matrix<bf16> columns, const SsdSizes& sizes, const SsdChunk* chunks,
                  const SsdScratch& scratch, bf16* states, cudaStream_t stream) {
  const auto launch = [&]<int kWidth, int kState>() {
    constexpr std::size_t kBytes = sizeof(StateMemory<kWidth, kState>);
    const auto kernel = add_chunk_states<kDirection, kWidth, kState>;
    allow_shared_memory(kernel, kBytes);
    kernel<<<grid_of(sizes.heads, sizes.chunks), kStateThreads, kBytes, stream>>>(
        rows, columns, static_cast<int>(sizes.heads / sizes.groups), chunks, step_table(scratch), states);
  };
  sizes.state == 128 ? launch.template operator()<64, 128>() : launch.template operator()<64, 64>();
}

template <Direction kDirection>
void pass_states(const SsdSizes& sizes, const SsdChunk* chunks, const SsdScratch& scratch,
                 const SsdBorderStates& border, bf16* states, const bf16* before, cudaStream_t stream) {
  const std::int64_t elements = sizes.width * sizes.state;
  pass<kDirection><<<grid_of(blocks_for(elements, kPassThreads * kPassWidth), sizes.heads), kPassThreads, 0, stream>>>(
      static_cast<int>(sizes.chunks), static_cast<int>(sizes.heads), static_cast<int>(elements), chunks,
      step_table(scratch), border, states, before, scratch.passed);
}

template void chunk_states<Direction::Forward>(Matrix<bf16>, Matrix<bf16>, const SsdSizes&, const SsdChunk*,
                                               const SsdScratch&, bf16*, cudaStream_t);
template void chunk_states<Direction::Backward>(Matrix<bf16>, Matrix<bf16>, const SsdSizes&, const SsdChunk*,
                                                const SsdScratch&, bf16*, cudaStream_t);
template void pass_states<Direction::Forward>(const SsdSizes&, const SsdChunk*, const SsdScratch&,
                                              const SsdBorderStates&, bf16*, const bf16*, cudaStream_t);
template void pass_states<Direction::Backward>(const SsdSizes&, const SsdChunk*, const SsdScratch&,
                                               const SsdBorderStates&, bf16*, const bf16*, cudaStream_t);

}  // namespace braid::kernels::ssd
