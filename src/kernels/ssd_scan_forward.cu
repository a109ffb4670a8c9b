#include "kernels/ssd_scan.cuh"

namespace braid::kernels {
namespace ssd {
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

// y of a chunk, for the heads of one group. A warp has 16 slots (rows i) and keeps their scores C_i . B_j, j <= i, in
// registers for all heads. Per head, with the weights w_ij = scores_ij exp(sum_i - sum_j) s_j:
//   y_i = exp(sum_i) H C_i + sum_j w_ij x_j + D x_i
// The next head's x and state H are copied to shared memory meanwhile.
template <int kWidth, int kState>
__global__ void __launch_bounds__(kThreads, 2)
    outputs(SsdTensors in, int heads, int heads_per_group, const SsdChunk* table, const Steps* all_steps,
            const bf16* states, Matrix<bf16> y) {
  wait_for_previous();
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<OutputMemory<kWidth, kState>*>(memory);
  const Panels<kSlots, kState> C{shared.C}, B{reinterpret_cast<bf16*>(&shared.stages[1])};
  // The chunks whose states were written last come first: some of them are still in the L2 cache.
  const int chunk_index = gridDim.y - 1 - blockIdx.y;
  const SsdChunk chunk = table[chunk_index];
  const int group = blockIdx.x, tile = tile_of_warp(), first_row = tile * kMma;

  const auto load_head = [&](int i) {
    auto& stage = shared.stages[i % 2];
    const std::int64_t head = std::int64_t{group} * heads_per_group + i,
                       index = std::int64_t{chunk_index} * heads + head;
    load_tile<kSlots, kThreads>(Tile<kWidth>{stage.x}, in.x.data + chunk.begin * in.x.stride + head * kWidth,
                                in.x.stride, chunk.tokens);
    load_panels<kThreads>(Panels<kWidth, kState>{stage.state}, states + index * kWidth * kState, kState, kWidth);
    load_steps<kThreads>(stage.steps, all_steps + index);
  };
  const auto of_group = [&](const Matrix<bf16>& from) {
    return from.data + chunk.begin * from.stride + group * kState;
  };
  load_in_order_of_warps<kThreads>(C, of_group(in.C), in.C.stride, chunk.tokens);
  load_panels<kThreads>(B, of_group(in.B), in.B.stride, chunk.tokens);
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
    const float from_start[2] = {decay_of(sum[0]), decay_of(sum[1])};
    wait_for_sums(sums);
#pragma unroll
    for (int p = 0; p < kWidth / 8; ++p)
#pragma unroll
      for (int v = 0; v < 4; ++v) sums[p].values[v] *= from_start[v / 2];

    const float from_tile[2] = {steps.from_tile[row], steps.from_tile[row + 8]};
#pragma unroll
    for (int j = 0; j < kTiles; j += 2) {
      if (j > tile) continue;
      Fragment weights[2];
      if (j + 1 < tile) {
#pragma unroll
        for (int t = 0; t < 2; ++t) {
          const float between = steps.between(j + t, tile);
#pragma unroll
          for (int v = 0; v < 4; ++v) {
            const int column = (j + t) * kMma + v / 2 * 8 + column_of_lane();
            const float2 score = unpack(scores[j + t].values[v]), to_tile = pair_at(&steps.to_tile[column]);
            const float2 step = pair_at(&steps.step[column]);
            const float decay = from_tile[v % 2] * between;
            weights[t].values[v] =
                pack(score.x * (decay * (to_tile.x * step.x)), score.y * (decay * (to_tile.y * step.y)));
          }
        }
      } else {
#pragma unroll
        for (int t = 0; t < 2; ++t)
#pragma unroll
          for (int v = 0; v < 4; ++v) {
            const int column = (j + t) * kMma + v / 2 * 8 + column_of_lane(), slot = row + v % 2 * 8;
            const float2 score = unpack(scores[j + t].values[v]), until = pair_at(&steps.sum[column]);
            const float2 step = pair_at(&steps.step[column]);
            const float first = column <= slot ? decay_of(sum[v % 2] - until.x) : 0;
            const float second = column + 1 <= slot ? decay_of(sum[v % 2] - until.y) : 0;
            weights[t].values[v] = pack(score.x * (first * step.x), score.y * (second * step.y));
          }
      }
#pragma unroll
      for (int t = 0; t < 2; ++t)
#pragma unroll
        for (int p = 0; p < kWidth / kMma; ++p)
          multiply_add(&sums[2 * p], weights[t], right(x, (j + t) * kMma, p * kMma));
    }

    Fragment own[kWidth / kMma];
#pragma unroll
    for (int p = 0; p < kWidth / kMma; ++p) own[p] = left(x.from_row(first_row), 0, p * kMma);
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const int slot = row + 8 * below;
      bf16* to = y.data + (chunk.begin + slot) * y.stride + head * kWidth;
#pragma unroll
      for (int p = 0; p < kWidth / kMma; ++p) {
        const float *a = sums[2 * p].values + 2 * below, *b = sums[2 * p + 1].values + 2 * below;
        const float2 low = unpack(own[p].values[below]), high = unpack(own[p].values[2 + below]);
        store_row(to + p * kMma, {a[0] + skip * low.x, a[1] + skip * low.y},
                  {b[0] + skip * high.x, b[1] + skip * high.y}, slot < chunk.tokens);
      }
    }
  }
}

}  // namespace
}  // namespace ssd

void ssd_scan_forward(const SsdTensors& in, const SsdSizes& sizes, const SsdChunk* chunks, const SsdScratch& scratch,
                      const SsdBorderStates& border, Matrix<bf16> y, bf16* states, cudaStream_t stream) {
  using namespace ssd;
  if (sizes.chunks == 0) return;
  fill_steps(in, sizes, chunks, scratch, stream);
  chunk_states<Direction::Forward>(in.x, in.B, sizes, chunks, scratch, states, stream);
  pass_states<Direction::Forward>(sizes, chunks, scratch, border, states, nullptr, stream);
  const auto launch = [&]<int kWidth, int kState>() {
    constexpr std::size_t kBytes = sizeof(OutputMemory<kWidth, kState>);
    const auto kernel = outputs<kWidth, kState>;
    allow_shared_memory(kernel, kBytes);
    launch_kernel(kernel, {grid_of(sizes.groups, sizes.chunks), kThreads, kBytes, stream}, in,
                  static_cast<int>(sizes.heads), static_cast<int>(sizes.heads / sizes.groups), chunks,
                  step_table(scratch), states, y);
  };
  sizes.state == 128 ? launch.template operator()<64, 128>() : launch.template operator()<64, 64>();
}

}  // namespace braid::kernels
