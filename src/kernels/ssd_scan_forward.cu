#include "kernels/ssd_scan.cuh"

namespace braid::kernels {
namespace ssd {
namespace {

// s, at a raw time step.
__device__ float step_of(float raw, const SsdSizes& sizes) {
  const float s = softplus(raw);
  // Not fminf and fmaxf, which would hide a NaN.
  return s < sizes.dt_min ? sizes.dt_min : s > sizes.dt_max ? sizes.dt_max : s;
}

__global__ void __launch_bounds__(kStepThreads)
    steps_of(Inputs in, SsdSizes sizes, const SsdChunk* table, Steps* all_steps) {
  wait_for_previous();
  __shared__ TransposedSteps numbers;
  const SsdChunk chunk = table[blockIdx.x];
  const int warp = threadIdx.x / kWarp, lane = lane_id(), first = lane * kPerLane;
  const std::int64_t first_head = std::int64_t{blockIdx.y} * kStepHeads, head = first_head + warp;
  float of_thread[kPerLane];
  load_numbers(of_thread, in.dt, chunk, sizes);
  const auto of_head = [&](const Numbers& all, std::int64_t i) { return value_at(all, min(i, sizes.heads - 1)); };
  const float bias = of_head(in.dt_bias, first_head + loaded_head()), A = -expf(of_head(in.A_log, head));
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    numbers.values[loaded_head()][loaded_slot(i)] =
        has_number(i, chunk, sizes) ? step_of(of_thread[i] + bias, sizes) : 0;
  __syncthreads();
  if (head >= sizes.heads) return;

  const auto step = Vector<float, kPerLane>::load(&numbers.values[warp][first]);
  // Running sums: over the lane's slots, then over the four lanes of a tile, then over the tiles before it.
  constexpr int kLanes = kMma / kPerLane;
  float sum[kPerLane], before = 0, before_tile = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) sum[i] = (i == 0 ? 0 : sum[i - 1]) + step.values[i] * A;
  for (int i = 0; i + 1 < kLanes; ++i) {
    const float other = __shfl_sync(~0u, sum[kPerLane - 1], i, kLanes);
    if (lane % kLanes > i) before += other;
  }
  for (float& value : sum) value += before;
  const float of_tile = __shfl_sync(~0u, sum[kPerLane - 1], kLanes - 1, kLanes);
  for (int i = 0; i + 1 < kTiles; ++i) {
    const float other = __shfl_sync(~0u, of_tile, i * kLanes);
    if (lane / kLanes > i) before_tile += other;
  }

  Steps& steps = all_steps[blockIdx.x * sizes.heads + head];
  const auto write = [&](float* to, auto value) {
    Vector<float, kPerLane>{value(0), value(1), value(2), value(3)}.store(to + first);
  };
  write(steps.step, [&](int i) { return step.values[i]; });
  write(steps.sum, [&](int i) { return before_tile + sum[i]; });
  write(steps.from_tile, [&](int i) { return expf(sum[i]); });
  write(steps.to_tile, [&](int i) { return expf(of_tile - sum[i]); });
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
    add_chunk_states(Matrix<bf16> rows, Matrix<bf16> columns, int heads, int heads_per_group, const SsdChunk* table,
                     const Steps* all_steps, bf16* states) {
  wait_for_previous();
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<StateMemory<kWidth, kState>*>(memory);
  const Tile<kWidth> row_tile{shared.rows};
  const Tile<kState> column_tile{shared.columns};
  const int head = static_cast<int>(blockIdx.x % heads), group = head / heads_per_group;
  // The chunks with which pass_states begins come last: some of them are still in the L2 cache then.
  const int chunk_index =
      static_cast<int>((kDirection == Direction::Forward ? gridDim.x - 1 - blockIdx.x : blockIdx.x) / heads);
  const SsdChunk chunk = table[chunk_index];
  const std::int64_t index = std::int64_t{chunk_index} * heads + head;
  load_tile<kSlots, kStateThreads>(row_tile, rows.data + chunk.begin * rows.stride + head * kWidth, rows.stride,
                                   chunk.tokens);
  load_tile<kSlots, kStateThreads>(column_tile, group_rows<kState>(columns, chunk, group), columns.stride,
                                   chunk.tokens);
  const Steps& steps = all_steps[index];
  const int slot = threadIdx.x;
  static_assert(kStateThreads == kSlots);
  shared.weights[slot] = kDirection == Direction::Forward
                             ? fast_exp(steps.sum[kSlots - 1] - steps.sum[slot]) * steps.step[slot]
                             : fast_exp(steps.sum[slot]);
  copies_arrived();
  __syncthreads();

  constexpr int kRows = kWidth / 2, kColumns = kState / 2;
  const int warp = threadIdx.x / kWarp, first_row = warp / 2 * kRows, first_column = warp % 2 * kColumns;
  Accumulator sums[kRows / kMma][kColumns / 8];
#pragma unroll 2
  for (int k = 0; k < kSlots; k += kMma) {
    const float2 low = *reinterpret_cast<const float2*>(&shared.weights[k + column_of_lane()]);
    const float2 high = *reinterpret_cast<const float2*>(&shared.weights[k + 8 + column_of_lane()]);
    Fragment weighted[kRows / kMma];
#pragma unroll
    for (int m = 0; m < kRows / kMma; ++m) {
      weighted[m] = left_transposed(row_tile, first_row ^ m * kMma, k);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack(weighted[m].values[i]), weight = i < 2 ? low : high;
        weighted[m].values[i] = pack(pair.x * weight.x, pair.y * weight.y);
      }
    }
#pragma unroll
    for (int n = 0; n < kColumns / kMma; ++n) {
      const Fragment b = right(column_tile, k, first_column ^ n * kMma);
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
        const int row = first_row + m * kMma + row_of_lane() + 8 * below;
        store_sums(state + row * kState + first_column + n * kMma, &sums[m][2 * n], below, true);
      }
}

// A thread has 8 elements of the state of one head and walks over all chunks. It reads kAhead chunks ahead.
constexpr int kPassThreads = 128, kPassWidth = 8;
static_assert(kPassWidth * kWarp == kPassedElements);

struct Ahead {
  uint4 added, before;  // 8 bf16
  float sum;
  int place;
};

template <Direction kDirection>
__global__ void __launch_bounds__(kPassThreads, 4)
    pass(int chunks, int heads, int elements, const SsdChunk* table, const Steps* steps, Border border, bf16* states,
         const bf16* before, float* passed) {
  wait_for_previous();
  constexpr bool kForward = kDirection == Direction::Forward;
  constexpr int kAhead = kForward ? 8 : 6;
  constexpr int kBegins = kForward ? kFirstChunk : kLastChunk, kEnds = kForward ? kLastChunk : kFirstChunk;
  const int head = blockIdx.y, place = (blockIdx.x * kPassThreads + threadIdx.x) * kPassWidth;
  if (place >= elements) return;  // whole warps
  const auto chunk_at = [&](int step) { return kForward ? step : chunks - 1 - step; };
  const auto index_at = [&](int step) { return static_cast<std::int64_t>(chunk_at(step)) * heads + head; };
  const auto eight = [&](const bf16* all, std::int64_t index) {
    return *reinterpret_cast<const uint4*>(all + index * elements + place);
  };
  // Beyond the last chunk, that one again, which is not used.
  const auto load = [&](int step) {
    const int chunk = chunk_at(min(step, chunks - 1));
    const std::int64_t index = std::int64_t{chunk} * heads + head;
    return Ahead{eight(states, index), kForward ? uint4() : eight(before, index), steps[index].sum[kSlots - 1],
                 table[chunk].place};
  };
  // Of the sequence of this step, at its border.
  const auto at_border = [&](int step) {
    return (std::int64_t{table[chunk_at(step)].sequence} * heads + head) * elements + place;
  };
  const auto enter = [&](float(&carry)[kPassWidth], int step) {
    const auto first = Vector<float, 4>::load(border.enter + at_border(step)),
               second = Vector<float, 4>::load(border.enter + at_border(step) + 4);
    for (int k = 0; k < 4; ++k) carry[k] = first.values[k], carry[k + 4] = second.values[k];
  };
  const auto leave = [&](const float(&carry)[kPassWidth], int step) {
    Vector<float, 4>{carry[0], carry[1], carry[2], carry[3]}.store(border.leave + at_border(step));
    Vector<float, 4>{carry[4], carry[5], carry[6], carry[7]}.store(border.leave + at_border(step) + 4);
  };
  float carry[kPassWidth] = {};
  Ahead ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) ahead[i] = load(i);
  for (int base = 0; base < chunks; base += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int step = base + i;
      const bool valid = step < chunks;
      const Ahead now = ahead[i];
      ahead[i] = load(step + kAhead);
      if (now.place & kBegins)
        for (float& value : carry) value = 0;
      if (border.enter != nullptr && valid && (now.place & kBegins)) enter(carry, step);
      unsigned arrived[kPassWidth / 2];
      float product = 0;
      const float decay = fast_exp(now.sum);
#pragma unroll
      for (int k = 0; k < kPassWidth; k += 2) {
        arrived[k / 2] = pack(carry[k], carry[k + 1]);
        const float2 added = unpack((&now.added.x)[k / 2]);
        if constexpr (!kForward) {
          const float2 before = unpack((&now.before.x)[k / 2]);
          product += carry[k] * before.x + carry[k + 1] * before.y;
        }
        carry[k] = carry[k] * decay + added.x;
        carry[k + 1] = carry[k + 1] * decay + added.y;
      }
      if (valid)
        *reinterpret_cast<uint4*>(states + index_at(step) * elements + place) = {arrived[0], arrived[1], arrived[2],
                                                                                 arrived[3]};
      if constexpr (!kForward) {
        product = warp_sum(product);
        if (valid && lane_id() == 0)
          passed[index_at(step) * (elements / kPassedElements) + place / kPassedElements] = product * decay;
      }
      if (border.leave != nullptr && valid && (now.place & kEnds)) leave(carry, step);
    }
  }
}

}  // namespace

void fill_steps(const Inputs& in, const SsdSizes& sizes, const SsdChunk* chunks, Steps* steps, const Queue& queue) {
  const dim3 blocks(sizes.chunks, blocks_for(sizes.heads, kStepHeads));
  launch_kernel(steps_of, {blocks, kStepThreads, 0, queue}, in, sizes, chunks, steps);
}

template <Direction kDirection>
void chunk_states(const Matrix<bf16>& rows, const Matrix<bf16>& columns, const SsdSizes& sizes, const SsdChunk* chunks,
                  const Steps* steps, bf16* states, const Queue& queue) {
  const auto launch = [&]<int kWidth, int kState>() {
    constexpr std::size_t kBytes = sizeof(StateMemory<kWidth, kState>);
    launch_kernel(add_chunk_states<kDirection, kWidth, kState>,
                  {sizes.chunks * sizes.heads, kStateThreads, kBytes, queue}, rows, columns, sizes.heads,
                  sizes.heads / sizes.groups, chunks, steps, states);
  };
  sizes.state == 128 ? launch.template operator()<64, 128>() : launch.template operator()<64, 64>();
}

template <Direction kDirection>
void pass_states(const SsdSizes& sizes, const SsdChunk* chunks, const Steps* steps, const Border& border, bf16* states,
                 const bf16* before, float* passed, const Queue& queue) {
  const std::int64_t elements = sizes.width * sizes.state;
  const dim3 blocks(blocks_for(elements, kPassThreads * kPassWidth), sizes.heads);
  launch_kernel(pass<kDirection>, {blocks, kPassThreads, 0, queue}, sizes.chunks, sizes.heads, elements, chunks, steps,
                border, states, before, passed);
}

template void chunk_states<Direction::Backward>(const Matrix<bf16>&, const Matrix<bf16>&, const SsdSizes&,
                                                const SsdChunk*, const Steps*, bf16*, const Queue&);
template void pass_states<Direction::Backward>(const SsdSizes&, const SsdChunk*, const Steps*, const Border&, bf16*,
                                               const bf16*, float*, const Queue&);

namespace {

constexpr int kThreads = 256;

// While the scores are computed, B takes the place of the second stage.
template <int kWidth, int kState>
struct OutputMemory {
  struct Stage {
    bf16 x[kSlots * kWidth], state[kWidth * kState];
    Steps steps;
  };
  bf16 C[kSlots * kState];
  Stage stages[2];
  static_assert(sizeof(Stage) >= kSlots * kState * sizeof(bf16));
};

// The weights w_ij of a warp's rows in a tile of columns that is before the tile of the rows.
__device__ Fragment weights_before(const Fragment& scores, const Steps& steps, int column_tile, int tile,
                                   const float (&from_tile)[2]) {
  const float between = steps.between(column_tile, tile);
  Fragment weights;
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    const int column = column_tile * kMma + v / 2 * 8 + column_of_lane();
    const float2 score = unpack(scores.values[v]), to_tile = pair_at(&steps.to_tile[column]);
    const float2 step = pair_at(&steps.step[column]);
    const float decay = from_tile[v % 2] * between;
    weights.values[v] = pack(score.x * (decay * (to_tile.x * step.x)), score.y * (decay * (to_tile.y * step.y)));
  }
  return weights;
}

// In any tile; zeros for j > i.
__device__ Fragment weights_around(const Fragment& scores, const Steps& steps, int column_tile, int row,
                                   const float (&sum)[2]) {
  Fragment weights;
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    const int column = column_tile * kMma + v / 2 * 8 + column_of_lane(), slot = row + v % 2 * 8;
    const float2 score = unpack(scores.values[v]), until = pair_at(&steps.sum[column]);
    const float2 step = pair_at(&steps.step[column]);
    const float first = column <= slot ? fast_exp(sum[v % 2] - until.x) : 0;
    const float second = column + 1 <= slot ? fast_exp(sum[v % 2] - until.y) : 0;
    weights.values[v] = pack(score.x * (first * step.x), score.y * (second * step.y));
  }
  return weights;
}

// y of a chunk, for the heads of one group. A warp has 16 slots (rows i) and keeps their scores C_i . B_j, j <= i, in
// registers for all heads. Per head, with the weights w_ij = scores_ij exp(sum_i - sum_j) s_j:
//   y_i = exp(sum_i) H C_i + sum_j w_ij x_j + D x_i
// The next head's x and state H are copied to shared memory meanwhile.
template <int kWidth, int kState>
__global__ void __launch_bounds__(kThreads, 2)
    outputs(Inputs in, int groups, int heads_per_group, const SsdChunk* table, const Steps* all_steps,
            const bf16* states, Matrix<bf16> y) {
  wait_for_previous();
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<OutputMemory<kWidth, kState>*>(memory);
  const Panels<kSlots, kState> C{shared.C}, B{reinterpret_cast<bf16*>(&shared.stages[1])};
  // The chunks whose states were written last come first: some of them are still in the L2 cache.
  const int chunk_index = static_cast<int>((gridDim.x - 1 - blockIdx.x) / groups);
  const SsdChunk chunk = table[chunk_index];
  const int group = static_cast<int>(blockIdx.x % groups), tile = tile_of_warp(), first_row = tile * kMma;

  const auto load_head = [&](int i) {
    auto& stage = shared.stages[i % 2];
    const std::int64_t head = std::int64_t{group} * heads_per_group + i,
                       index = std::int64_t{chunk_index} * groups * heads_per_group + head;
    load_tile<kSlots, kThreads>(Tile<kWidth>{stage.x}, in.x.data + chunk.begin * in.x.stride + head * kWidth,
                                in.x.stride, chunk.tokens);
    load_panels<kThreads>(Panels<kWidth, kState>{stage.state}, states + index * kWidth * kState, kState, kWidth);
    load_steps<kThreads>(stage.steps, all_steps + index);
  };
  load_in_order_of_warps<kThreads>(C, group_rows<kState>(in.C, chunk, group), in.C.stride, chunk.tokens);
  load_panels<kThreads>(B, group_rows<kState>(in.B, chunk, group), in.B.stride, chunk.tokens);
  load_head(0);
  copies_arrived();
  __syncthreads();

  Fragment scores[kTiles];
  compute_scores(scores, C.from_row(place_of_warp()), B, tile + 1);

  for (int i = 0; i < heads_per_group; ++i) {
    copies_arrived();
    publish_copies();
    __syncthreads();
    if (i + 1 < heads_per_group) load_head(i + 1);
    const auto& stage = shared.stages[i % 2];
    const Tile<kWidth> x{const_cast<bf16*>(stage.x)};
    Accumulator sums[kWidth / 8];
    begin_product<true>(sums, C.from_row(place_of_group()), Panels<kWidth, kState>{const_cast<bf16*>(stage.state)});
    const Steps& steps = stage.steps;
    const int head = group * heads_per_group + i, row = first_row + row_of_lane();
    const float skip = value_at(in.D, head);

    const float sum[2] = {steps.sum[row], steps.sum[row + 8]};
    const float from_start[2] = {fast_exp(sum[0]), fast_exp(sum[1])};
    wait_for_sums(sums);
    scale_rows(sums, from_start);

    const float from_tile[2] = {steps.from_tile[row], steps.from_tile[row + 8]};
#pragma unroll
    for (int j = 0; j < kTiles; j += 2) {
      if (j > tile) continue;
      Fragment weights[2];
      if (j + 1 < tile) {
        weights[0] = weights_before(scores[j], steps, j, tile, from_tile);
        weights[1] = weights_before(scores[j + 1], steps, j + 1, tile, from_tile);
      } else {
        weights[0] = weights_around(scores[j], steps, j, row, sum);
        weights[1] = weights_around(scores[j + 1], steps, j + 1, row, sum);
      }
#pragma unroll
      for (int t = 0; t < 2; ++t)
#pragma unroll
        for (int p = 0; p < kWidth / kMma; ++p)
          multiply_add(&sums[2 * p], weights[t], right(x, (j + t) * kMma, p * kMma));
    }

    store_head(y, chunk, head, first_row, sums, skip, x.from_row(first_row));
  }
}

}  // namespace
}  // namespace ssd

void ssd_scan_forward(const SsdTensors& tensors, const SsdSizes& sizes, const Tensor& chunks, const SsdBorder& border,
                      const Tensor& y, const Tensor& states, const Tensor& steps, const Queue& queue) {
  using namespace ssd;
  if (sizes.chunks == 0) return;
  const Inputs in(tensors);
  fill_steps(in, sizes, chunks, steps, queue);
  chunk_states<Direction::Forward>(in.x, in.B, sizes, chunks, steps, states, queue);
  pass_states<Direction::Forward>(sizes, chunks, steps, {border.enter, border.leave}, states, nullptr, nullptr, queue);
  const auto launch = [&]<int kWidth, int kState>() {
    constexpr std::size_t kBytes = sizeof(OutputMemory<kWidth, kState>);
    launch_kernel(outputs<kWidth, kState>, {sizes.chunks * sizes.groups, kThreads, kBytes, queue}, in, sizes.groups,
                  sizes.heads / sizes.groups, chunks, steps, states, y);
  };
  sizes.state == 128 ? launch.template operator()<64, 128>() : launch.template operator()<64, 64>();
}

}  // namespace braid::kernels
