#include <utility>
#include "kernels/ssd_scan.cuh"

// With the gradient g_i of y_i, the state H before a chunk, the gradient G of the state after it, and per head
//   w_ij = scores_ij exp(sum_i - sum_j) and z_ij = (g_i . x_j) w_ij for i >= j (s_j is left out of both):
//   x_j grad      = s_j (sum_i w_ij g_i + exp(sum_end - sum_j) G B_j) + D g_j
//   scores_ij grad = sum over heads of (g_i . x_j) exp(sum_i - sum_j) s_j
//   C_i grad      = sum_j scores_ij grad B_j + sum over heads of exp(sum_i) H^T g_i
//   B_j grad      = sum_i scores_ij grad C_i + sum over heads of exp(sum_end - sum_j) s_j G^T x_j
//   s_j grad      = sum_i z_ij + exp(sum_end - sum_j) x_j . (G B_j)         as the factor of x_j
//   sum_i grad    = sum_{j < i} z_ij s_j + exp(sum_i) g_i . (H C_i) - s_i (s_i grad without z_ii)
// and the last sum also gets what its decay of all states gives. In running sums the terms i = j cancel: they are
// omitted.
namespace braid::kernels {
namespace ssd {
namespace {

constexpr int kThreads = 256;

// Of one head in one chunk, per slot.
struct TokenGrads {
  float later[kSlots];       // sum_{i > j} z_ij
  float earlier[kSlots];     // sum_{j < i} z_ij s_j
  float own[kSlots];         // z_jj
  float product[kSlots];     // g_j . x_j
  float from_state[kSlots];  // exp(sum_i) g_i . (H C_i)
  float to_state[kSlots];    // exp(sum_end - sum_j) x_j . (G B_j)
};

// While the scores are computed, C takes the place of the second stage.
template <int kWidth, int kState>
struct ChunkMemory {
  struct Stage {
    bf16 x[kSlots * kWidth], grad[kSlots * kWidth], state_grad[kWidth * kState];
    Steps steps;
  };
  bf16 B[kSlots * kState];
  Stage stages[2];
  float earlier[2][kTiles][kSlots];  // of the current and the previous head: sums over a tile of slots j
  static_assert(sizeof(Stage) >= kSlots * kState * sizeof(bf16));
};

// Sums of 16 columns over the 16 rows of a tile; v[half][i] has column 8 half + column_of_lane() + i, summed over this
// lane's rows. Each lane gets one of its four columns: halves of them are exchanged with lanes of other rows.
__device__ void write_column_sums(const float (&v)[2][2], float* to) {
  const int lane = lane_id();
  const bool second = lane & 16, odd = lane & 8;
  float kept[2];
  for (int i = 0; i < 2; ++i)
    kept[i] = (second ? v[1][i] : v[0][i]) + __shfl_xor_sync(~0u, second ? v[0][i] : v[1][i], 16);
  float sum = (odd ? kept[1] : kept[0]) + __shfl_xor_sync(~0u, odd ? kept[0] : kept[1], 8);
  sum += __shfl_xor_sync(~0u, sum, 4);
  if ((lane & 4) == 0) to[(second ? 8 : 0) + column_of_lane() + (odd ? 1 : 0)] = sum;
}

// The sum over the four lanes of a row.
__device__ float row_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// A tile of 16 rows j and 16 columns i of one head. A lane has rows row_of_lane() + 8 below, columns 8 half +
// column_of_lane() + e, and their products g_i . x_j.
struct InnerTile {
  const Accumulator (&products)[2];
  const Fragment& scores;
  const float (&step)[2];
  Accumulator* score_grad;   // two, to which this head's are added
  float (&later)[2];         // sums of z_ij over columns, to which this tile's are added
  float earlier[2][2] = {};  // [half][e]: sums of z_ij s_j over rows
  Fragment weights = {};     // w_ij

  // w_ij and z_ij
  __device__ std::pair<float, float> weigh(int half, int below, int e, float decay) {
    const float2 scores_of_pair = unpack(scores.values[2 * half + below]);
    const float score = e == 0 ? scores_of_pair.x : scores_of_pair.y;
    const float decayed = products[half].values[2 * below + e] * decay;
    score_grad[half].values[2 * below + e] += decayed * step[below];
    return {score * decay, decayed * score};
  }
  __device__ void add(int half, int below, int e, float z) {
    later[below] += z;
    earlier[half][e] += z * step[below];
  }

  // If the columns are `distance` > 0 tiles after the rows.
  __device__ void weigh_later(const Steps& steps, int tile, int distance) {
    const int row = tile * kMma + row_of_lane(), first_column = (tile + distance) * kMma;
    const float between = steps.between(tile, tile + distance);
    const float from_row[2] = {steps.to_tile[row] * between, steps.to_tile[row + 8] * between};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 to_column = pair_at(&steps.from_tile[first_column + half * 8 + column_of_lane()]);
#pragma unroll
      for (int below = 0; below < 2; ++below) {
        const auto [first, first_z] = weigh(half, below, 0, from_row[below] * to_column.x);
        const auto [second, second_z] = weigh(half, below, 1, from_row[below] * to_column.y);
        weights.values[2 * half + below] = pack(first, second);
        add(half, below, 0, first_z);
        add(half, below, 1, second_z);
      }
    }
  }

  // If rows and columns are the same slots.
  __device__ void weigh_diagonal(const Steps& steps, int tile, const float (&sum)[2], TokenGrads& tokens) {
    const int first_row = tile * kMma, row = first_row + row_of_lane();
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int below = 0; below < 2; ++below) {
        float of_pair[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = first_row + half * 8 + column_of_lane() + e, slot = row + 8 * below;
          const auto [weight, z] = weigh(half, below, e, column >= slot ? fast_exp(steps.sum[column] - sum[below]) : 0);
          of_pair[e] = weight;
          add(half, below, e, column == slot ? 0 : z);
          if (column == slot) {
            tokens.own[slot] = z;
            tokens.product[slot] = products[half].values[2 * below + e];
          }
        }
        weights.values[2 * half + below] = pack(of_pair[0], of_pair[1]);
      }
  }
};

// A warp's rows of score gradients; their tiles of columns count from the warp's own. Those beyond the last tile begin
// the row: they are zero.
__device__ void store_score_grads(bf16* to, const Accumulator (&score_grad)[2 * kTiles], int tile) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i)
#pragma unroll
    for (int below = 0; below < 2; ++below)
      store_sums(to + (tile * kMma + row_of_lane() + 8 * below) * kSlots + (tile + i) % kTiles * kMma,
                 &score_grad[2 * i], below, true);
}

// The gradients of x and of the scores inside a chunk, for the heads of one group. A warp has 16 slots j as rows; their
// scores, and the gradients of these, summed over the heads, stay in registers: 16 x 128, columns i >= j. The next
// head's x, grad and state gradient are copied to shared memory meanwhile.
template <int kWidth, int kState>
__global__ void __launch_bounds__(kThreads, 1)
    inside_chunks(Matrix<bf16> grad, Inputs in, int groups, int heads_per_group, const SsdChunk* table,
                  const Steps* all_steps, const bf16* state_grads, Matrix<bf16> x_grad, bf16* score_grads,
                  TokenGrads* all_tokens) {
  wait_for_previous();
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<ChunkMemory<kWidth, kState>*>(memory);
  const Panels<kSlots, kState> B{shared.B}, C{reinterpret_cast<bf16*>(&shared.stages[1])};
  const SsdChunk chunk = table[blockIdx.x / groups];
  const int group = static_cast<int>(blockIdx.x % groups), tile = tile_of_warp(), first_row = tile * kMma;
  const std::int64_t first_index = std::int64_t{blockIdx.x} * heads_per_group;  // of the chunk's heads of this group

  const auto load_head = [&](int i) {
    auto& stage = shared.stages[i % 2];
    const std::int64_t column = (std::int64_t{group} * heads_per_group + i) * kWidth, index = first_index + i;
    load_tile<kSlots, kThreads>(Tile<kWidth>{stage.x}, in.x.data + chunk.begin * in.x.stride + column, in.x.stride,
                                chunk.tokens);
    load_tile<kSlots, kThreads>(Tile<kWidth>{stage.grad}, grad.data + chunk.begin * grad.stride + column, grad.stride,
                                chunk.tokens);
    load_panels<kThreads>(Panels<kWidth, kState>{stage.state_grad}, state_grads + index * kWidth * kState, kState,
                          kWidth);
    load_steps<kThreads>(stage.steps, all_steps + index);
  };
  // By the threads of the first half, one slot each; a slot of tile i has sums over tiles up to i.
  const auto write_earlier = [&](int i) {
    const int slot = threadIdx.x;
    if (slot >= kSlots) return;
    float sum = 0;
    for (int t = 0; t <= slot / kMma; ++t) sum += shared.earlier[i % 2][t][slot];
    all_tokens[first_index + i].earlier[slot] = sum;
  };
  load_in_order_of_warps<kThreads>(B, group_rows<kState>(in.B, chunk, group), in.B.stride, chunk.tokens);
  load_panels<kThreads>(C, group_rows<kState>(in.C, chunk, group), in.C.stride, chunk.tokens);
  load_head(0);
  copies_arrived();
  __syncthreads();

  // Tiles of columns count from the warp's own, so that all warps run the same code.
  const int tiles = kTiles - tile;
  Fragment scores[kTiles];
  Accumulator score_grad[2 * kTiles];
  compute_scores(scores, B.from_row(place_of_warp()), C.from_row(first_row), tiles);

  for (int h = 0; h < heads_per_group; ++h) {
    copies_arrived();
    publish_copies();
    __syncthreads();
    auto& stage = shared.stages[h % 2];
    Accumulator sums[kWidth / 8];
    begin_product<true>(sums, B.from_row(place_of_group()), Panels<kWidth, kState>{stage.state_grad});
    if (h + 1 < heads_per_group) load_head(h + 1);
    if (h > 0) write_earlier(h - 1);
    const Tile<kWidth> x = Tile<kWidth>{stage.x}.from_row(first_row);
    const Tile<kWidth> y_grad = Tile<kWidth>{stage.grad}.from_row(first_row);
    const Steps& steps = stage.steps;
    TokenGrads& tokens = all_tokens[first_index + h];
    const int row = first_row + row_of_lane();
    const float sum[2] = {steps.sum[row], steps.sum[row + 8]}, step[2] = {steps.step[row], steps.step[row + 8]};

    const float end = steps.sum[kSlots - 1], to_end[2] = {fast_exp(end - sum[0]), fast_exp(end - sum[1])};
    Fragment own_x[kWidth / kMma];
#pragma unroll
    for (int p = 0; p < kWidth / kMma; ++p) own_x[p] = left(x, 0, p * kMma);

    float later[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if (i > 0 && i >= tiles) break;  // there is always a first tile, which waits for the sums
      Accumulator products[2];
#pragma unroll
      for (int p = 0; p < kWidth; p += kMma)
        multiply_add(products, own_x[p / kMma], right_transposed(y_grad, p, i * kMma));
      InnerTile inner{products, scores[i], step, &score_grad[2 * i], later};
      if (i > 0) {
        inner.weigh_later(steps, tile, i);
      } else {
        inner.weigh_diagonal(steps, tile, sum, tokens);
        wait_for_sums(sums);
        scale_rows(sums, to_end);
      }
      write_column_sums(inner.earlier, &shared.earlier[h % 2][tile][first_row + i * kMma]);
#pragma unroll
      for (int p = 0; p < kWidth; p += kMma) multiply_add(&sums[p / 8], inner.weights, right(y_grad, i * kMma, p));
    }

    const int head = group * heads_per_group + h;
    scale_rows(sums, step);
    store_head(x_grad, chunk, head, first_row, sums, value_at(in.D, head), y_grad);
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const float all_later = row_sum(later[below]);
      if (column_of_lane() == 0) tokens.later[row + 8 * below] = all_later;
    }
  }

  __syncthreads();
  write_earlier(heads_per_group - 1);
  store_score_grads(score_grads + std::int64_t{blockIdx.x} * kSlots * kSlots, score_grad, tile);
}

// Before the heads, the gradients of the scores and the other of B and C take the place of the stages.
template <int kWidth, int kState>
struct GroupMemory {
  struct Stage {
    bf16 rows[kSlots * kWidth], state[kWidth * kState];
    Steps steps;
  };
  struct Scores {
    bf16 grads[kSlots * kSlots], other[kSlots * kState];
  };
  bf16 own[kSlots * kState];
  union {
    Stage stages[2];
    Scores scores;
  };
};

// What is different for the gradients of C and of B.
struct GroupTerms {
  Matrix<bf16> rows, own, other;  // grad, C, B; or x, B, C
  const bf16* states;             // H or G
  Matrix<bf16> to;
};
struct GroupTermsOfCAndB {
  GroupTerms terms[2];
};

// sums += a warp's rows of the scores' gradients, transposed for those of C, times the other of B and C.
template <int kState>
__device__ void add_score_products(Accumulator (&sums)[kState / 8], Tile<kSlots> scores, Tile<kState> other, bool of_C,
                                   int tile) {
  for (int k = 0; k < kTiles; ++k) {
    if (of_C ? k > tile : k < tile) continue;
    const Fragment s = of_C ? left_transposed(scores, tile * kMma, k * kMma) : left(scores, tile * kMma, k * kMma);
#pragma unroll
    for (int n = 0; n < kState / kMma; ++n) multiply_add(&sums[2 * n], s, right(other, k * kMma, n * kMma));
  }
}

// For 64 columns of a warp's rows, those from first_column: sums += weight products, and dots += products . factors.
// The factors begin with these rows.
template <int kState>
__device__ void add_weighted(Accumulator (&sums)[kState / 8], float (&dots)[2],
                             const Accumulator (&products)[kPanel / 8], const float (&weight)[2], Tile<kState> factors,
                             int first_column) {
#pragma unroll
  for (int n = 0; n < kPanel / 8; n += 2) {
    const int column = first_column + n * 8;
    const Fragment own = left(factors, 0, column);  // in the places of the products
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int below = 0; below < 2; ++below) {
        const float2 factor = unpack(own.values[2 * i + below]);
        const float* product = products[n + i].values + 2 * below;
        float* sum = sums[column / 8 + i].values + 2 * below;
        dots[below] += product[0] * factor.x + product[1] * factor.y;
        sum[0] += weight[below] * product[0];
        sum[1] += weight[below] * product[1];
      }
  }
}

// The gradient of C (blockIdx.x even) or B (odd) in a chunk, for one group: a product of the scores' gradients with the
// other of the two, and over the heads of the group products of grad and H, or of x and G, with rows weighted by
// decays. A warp has 16 slots as rows. The products' dot products with the rows of C or B are gradients of decays:
// from_state, to_state.
template <int kWidth, int kState>
__global__ void __launch_bounds__(kThreads, 2)
    of_groups(const __grid_constant__ GroupTermsOfCAndB both, int groups, int heads_per_group, const SsdChunk* table,
              const Steps* all_steps, const bf16* score_grads, TokenGrads* all_tokens) {
  wait_for_previous();
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<GroupMemory<kWidth, kState>*>(memory);
  // The chunks that were read last come first: some of them are still in the L2 cache.
  const int chunk_index = static_cast<int>((gridDim.x - 1 - blockIdx.x) / 2 / groups);
  const bool of_C = blockIdx.x % 2 == 0;
  const GroupTerms& terms = both.terms[blockIdx.x % 2];
  const Tile<kState> own{shared.own}, other{shared.scores.other};
  const Tile<kSlots> scores{shared.scores.grads};
  const SsdChunk chunk = table[chunk_index];
  const int group = static_cast<int>(blockIdx.x / 2 % groups), tile = tile_of_warp(), first_row = tile * kMma;
  const std::int64_t index = std::int64_t{chunk_index} * groups + group, first_index = index * heads_per_group;

  const auto load_group = [&](Tile<kState> to, const Matrix<bf16>& from) {
    load_tile<kSlots, kThreads>(to, group_rows<kState>(from, chunk, group), from.stride, chunk.tokens);
  };
  load_group(own, terms.own);
  load_group(other, terms.other);
  load_tile<kSlots, kThreads>(scores, score_grads + index * kSlots * kSlots, kSlots, kSlots);
  copies_arrived();
  __syncthreads();

  Accumulator sums[kState / 8];
  add_score_products(sums, scores, other, of_C, tile);
  __syncthreads();

  const auto load_head = [&](int i) {
    auto& stage = shared.stages[i % 2];
    load_in_order_of_warps<kThreads>(
        Panels<kSlots, kWidth>{stage.rows},
        terms.rows.data + chunk.begin * terms.rows.stride + (std::int64_t{group} * heads_per_group + i) * kWidth,
        terms.rows.stride, chunk.tokens);
    load_panels<kThreads>(Panels<kWidth, kState>{stage.state}, terms.states + (first_index + i) * kWidth * kState,
                          kState, kWidth);
    load_steps<kThreads>(stage.steps, all_steps + first_index + i);
  };
  load_head(0);
  const int row = first_row + row_of_lane();
  for (int h = 0; h < heads_per_group; ++h) {
    copies_arrived();
    publish_copies();
    __syncthreads();
    auto& stage = shared.stages[h % 2];
    const Panels<kSlots, kWidth> rows = Panels<kSlots, kWidth>{stage.rows}.from_row(place_of_group());
    const Panels<kWidth, kState> state{stage.state};
    Accumulator products[kPanel / 8];
    begin_product<false>(products, rows, state.panel(0));
    if (h + 1 < heads_per_group) load_head(h + 1);
    const Steps& steps = stage.steps;
    int own_row = first_row;  // unknown to the compiler, which would keep all addresses of the loop below in registers
    asm volatile("" : "+r"(own_row));
    float decay[2], weight[2], dots[2] = {0, 0};
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const int slot = row + 8 * below;
      decay[below] = fast_exp(of_C ? steps.sum[slot] : steps.sum[kSlots - 1] - steps.sum[slot]);
      weight[below] = of_C ? decay[below] : decay[below] * steps.step[slot];
    }
#pragma unroll
    for (int panel = 0; panel < kState / kPanel; ++panel) {
      if (panel > 0) begin_product<false>(products, rows, state.panel(panel));
      wait_for_sums(products);
      add_weighted(sums, dots, products, weight, own.from_row(own_row), panel * kPanel);
    }
    TokenGrads& tokens = all_tokens[first_index + h];
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const float dot = row_sum(dots[below]) * decay[below];
      if (column_of_lane() == 0) (of_C ? tokens.from_state : tokens.to_state)[row + 8 * below] = dot;
    }
  }

  const Matrix<bf16>& to = terms.to;
#pragma unroll
  for (int below = 0; below < 2; ++below) {
    const int slot = row + 8 * below;
#pragma unroll
    for (int n = 0; n < kState / kMma; ++n)
      store_sums(to.data + (chunk.begin + slot) * to.stride + group * kState + n * kMma, &sums[2 * n], below,
                 slot < chunk.tokens);
  }
}

__device__ float sum_of_next_lanes(float x) {
  const int lane = lane_id();
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const float other = __shfl_down_sync(~0u, x, distance);
    if (lane + distance < kWarp) x += other;
  }
  const float next = __shfl_down_sync(~0u, x, 1);
  return lane + 1 < kWarp ? next : 0;
}

// The gradient of dt, and the sums over a chunk for A_log, D and dt_bias.
__global__ void __launch_bounds__(kStepThreads)
    of_steps(Inputs in, SsdSizes sizes, const SsdChunk* table, const Steps* all_steps, const TokenGrads* all_tokens,
             const float* passed, Numbers dt_grad, float* chunk_sums) {
  wait_for_previous();
  __shared__ TransposedSteps numbers;  // dt, then its gradients
  const SsdChunk chunk = table[blockIdx.x];
  float of_thread[kPerLane];
  load_numbers(of_thread, in.dt, chunk, sizes);
  const int lane = lane_id(), first = lane * kPerLane, warp = threadIdx.x / kWarp;
  const std::int64_t head_of_warp = std::int64_t{blockIdx.y} * kStepHeads + warp;
  // A warp beyond the last head computes the last head again and writes nothing.
  const std::int64_t head = min(head_of_warp, sizes.heads - 1), index = blockIdx.x * sizes.heads + head;
  const Steps& steps = all_steps[index];
  const TokenGrads& tokens = all_tokens[index];
  const float bias = value_at(in.dt_bias, head), A = -expf(value_at(in.A_log, head));

  const auto load = [&](const float(&of_slots)[kSlots]) { return Vector<float, kPerLane>::load(of_slots + first); };
  const auto step = load(steps.step), later = load(tokens.later), earlier = load(tokens.earlier),
             own = load(tokens.own), products = load(tokens.product), from_states = load(tokens.from_state),
             to_states = load(tokens.to_state);
  const int parts = static_cast<int>(sizes.width * sizes.state / kPassedElements);
  float of_end = 0;
  for (int i = lane; i < parts; i += kWarp) of_end += passed[index * parts + i];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) numbers.values[loaded_head()][loaded_slot(i)] = of_thread[i];
  float of_step[kPerLane], of_a[kPerLane], to_state = 0, product = 0, total = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const float as_factor = later.values[i] + to_states.values[i];
    of_step[i] = as_factor + own.values[i];
    // of the running sum, so far
    of_a[i] = earlier.values[i] + from_states.values[i] - step.values[i] * as_factor;
    to_state += step.values[i] * to_states.values[i];
    product += products.values[i];
    total += of_a[i];
  }
  // The last running sum's gradient has more terms; what follows a slot is added up from the end.
  float after = warp_sum(of_end + to_state) + sum_of_next_lanes(total);

  __syncthreads();
  float* const of_lane = &numbers.values[warp][first];
  const auto dt = Vector<float, kPerLane>::load(of_lane);
  Vector<float, kPerLane> of_raw;
  float of_A = 0, of_bias = 0;
#pragma unroll
  for (int i = kPerLane - 1; i >= 0; --i) {
    after += of_a[i];
    of_A += after * step.values[i];
    const float raw = dt.values[i] + bias, positive = softplus(raw), slope = raw > 20 ? 1 : 1 / (1 + expf(-raw));
    const bool outside = positive < sizes.dt_min || positive > sizes.dt_max;  // a NaN is not
    of_raw.values[i] = outside ? 0 : (of_step[i] + after * A) * slope;
    if (first + i < chunk.tokens) of_bias += of_raw.values[i];
  }
  of_raw.store(of_lane);
  const float sums[3] = {warp_sum(of_A) * A, warp_sum(product), warp_sum(of_bias)};
  if (lane < 3 && head == head_of_warp)
    chunk_sums[index * 3 + lane] = lane == 0 ? sums[0] : lane == 1 ? sums[1] : sums[2];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    if (has_number(i, chunk, sizes))
      set_value(dt_grad, loaded_offset(i, chunk, dt_grad.stride), numbers.values[loaded_head()][loaded_slot(i)]);
}

// A warp adds up one head's sums over the chunks.
__global__ void __launch_bounds__(kThreads)
    of_weights(SsdSizes sizes, const float* chunk_sums, Numbers A_log_grad, Numbers D_grad, Numbers dt_bias_grad) {
  wait_for_previous();
  const std::int64_t head = std::int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (head >= sizes.heads) return;
  float sums[3] = {0, 0, 0};
  for (std::int64_t chunk = lane_id(); chunk < sizes.chunks; chunk += kWarp)
    for (int i = 0; i < 3; ++i) sums[i] += chunk_sums[(chunk * sizes.heads + head) * 3 + i];
  for (int i = 0; i < 3; ++i) sums[i] = warp_sum(sums[i]);
  if (lane_id() != 0) return;
  set_value(A_log_grad, head, sums[0]);
  set_value(D_grad, head, sums[1]);
  set_value(dt_bias_grad, head, sums[2]);
}

}  // namespace
}  // namespace ssd

bool ssd_scan_has_memory() {
  int device = 0, bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return bytes >= static_cast<int>(sizeof(ssd::ChunkMemory<64, 128>));
}

void ssd_scan_backward(const Tensor& grad, const SsdTensors& tensors, const SsdSizes& sizes, const Tensor& chunks,
                       const Tensor& states, const Tensor& steps, const SsdBorder& border, const SsdTensors& gradients,
                       const Queue& queue) {
  using namespace ssd;
  const Inputs in(tensors), to(gradients);
  const std::int64_t head_chunks = sizes.chunks * sizes.heads, elements = sizes.width * sizes.state;
  float* const sums = queue.scratch<float>(head_chunks * 3);
  if (sizes.chunks > 0) {
    float* const passed = queue.scratch<float>(head_chunks * elements / kPassedElements);
    auto* const tokens = queue.scratch<TokenGrads>(head_chunks);
    bf16* const state_grads = queue.scratch<bf16>(head_chunks * elements);
    bf16* const score_grads = queue.scratch<bf16>(sizes.chunks * sizes.groups * kSlots * kSlots);
    chunk_states<Direction::Backward>(grad, in.C, sizes, chunks, steps, state_grads, queue);
    pass_states<Direction::Backward>(sizes, chunks, steps, {border.enter, border.leave}, state_grads, states, passed,
                                     queue);
    const std::int64_t chunk_groups = sizes.chunks * sizes.groups, heads_per_group = sizes.heads / sizes.groups;
    const auto launch = [&]<int kWidth, int kState>() {
      constexpr std::size_t kChunkBytes = sizeof(ChunkMemory<kWidth, kState>);
      launch_kernel(inside_chunks<kWidth, kState>, {chunk_groups, kThreads, kChunkBytes, queue}, grad, in, sizes.groups,
                    heads_per_group, chunks, steps, state_grads, to.x, score_grads, tokens);
      constexpr std::size_t kGroupBytes = sizeof(GroupMemory<kWidth, kState>);
      const GroupTermsOfCAndB both{{{grad, in.C, in.B, states, to.C}, {in.x, in.B, in.C, state_grads, to.B}}};
      launch_kernel(of_groups<kWidth, kState>, {chunk_groups * 2, kThreads, kGroupBytes, queue}, both, sizes.groups,
                    heads_per_group, chunks, steps, score_grads, tokens);
    };
    sizes.state == 128 ? launch.template operator()<64, 128>() : launch.template operator()<64, 64>();
    const dim3 blocks(sizes.chunks, blocks_for(sizes.heads, kStepHeads));
    launch_kernel(of_steps, {blocks, kStepThreads, 0, queue}, in, sizes, chunks, steps, tokens, passed, to.dt, sums);
  }
  launch_kernel(of_weights, {blocks_for(sizes.heads, kThreads / kWarp), kThreads, 0, queue}, sizes, sums, to.A_log,
                to.D, to.dt_bias);
}

}  // namespace braid::kernels
