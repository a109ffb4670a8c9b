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
    outputs(SsdTensors in, int groups, int heads_per_group, const SsdChunk* table, const Steps* all_steps,
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

void ssd_scan_forward(const SsdTensors& in, const SsdSizes& sizes, const SsdChunk* chunks, const SsdScratch& scratch,
                      const SsdBorderStates& border, Matrix<bf16> y, bf16* states, cudaStream_t stream) {
  using namespace ssd;
  if (sizes.chunks == 0) return;
  fill_steps(in, sizes, chunks, scratch, stream);
  chunk_states<Direction::Forward>(in.x, in.B, sizes, chunks, scratch, states, stream);
  pass_states<Direction::Forward>(sizes, chunks, scratch, border, states, nullptr, stream);
  const auto launch = [&]<int kWidth, int kState>() {
    constexpr std::size_t kBytes = sizeof(OutputMemory<kWidth, kState>);
    launch_kernel(outputs<kWidth, kState>, {grid_of(sizes.chunks * sizes.groups), kThreads, kBytes, stream}, in,
                  static_cast<int>(sizes.groups), static_cast<int>(sizes.heads / sizes.groups), chunks,
                  step_table(scratch), states, y);
  };
  sizes.state == 128 ? launch.template operator()<64, 128>() : launch.template operator()<64, 64>();
}

}  // namespace braid::kernels
