// Blocks stay on their multiprocessors and take one tile of queries of a head after the other. A block's first
// warpgroup copies the queries, and then the keys and values of the sequence, in tiles of kKeys, to a ring of kStages
// places in shared memory. The other warpgroups attend, each with 64 of the queries: scores, their softmax relative to
// a reference close to the largest score so far, and the product with the values stay in registers. The scores of a
// tile are computed while the probabilities of the one before are multiplied with the values, and warpgroups take turns
// in starting products, so that one multiplies while another computes exponentials.
#include "kernels/attention.h"
#include "kernels/hopper.cuh"

namespace braid::kernels {
namespace attention {

// kRows rows of a head in shared memory. Rows of 128 bytes, which are read without bank conflicts, hold the first 64
// columns. The rest follows in pieces of 16 columns, in rows of 32 bytes, so that no memory or product goes to padding.
template <int kRows_, int kWidth>
struct Panel {
  static constexpr int kRows = kRows_, kWide = 64, kPiece = 16, kNarrow = kWidth - kWide;
  static_assert(kNarrow > 0 && kNarrow % kPiece == 0);
  static constexpr int kWideBytes = kRows * kWide * 2, kPieceBytes = kRows * kPiece * 2;
  static constexpr int kCopied = kRows * kWidth * 2, kBytes = (kCopied + 1023) / 1024 * 1024;

  // Descriptors of a product's operand: the k-th 16 columns are the depth, and its rows begin at `row`.
  __device__ static std::uint64_t depth(unsigned panel, int row, int k) {
    if (k < kWide / 16) return wide(panel + row * 128 + k * 32);
    return narrow(panel + kWideBytes + (k - kWide / 16) * kPieceBytes + row * 32);
  }
  // The depth is 16 rows from `row` on.
  __device__ static std::uint64_t wide_columns(unsigned panel, int row) { return wide(panel + row * 128); }
  __device__ static std::uint64_t narrow_columns(unsigned panel, int row) {
    return narrow(panel + kWideBytes + row * 32);
  }

 private:
  // The swizzle, the bytes of eight rows and the bytes between blocks of columns, in units of 16 bytes.
  __device__ static std::uint64_t wide(unsigned address) {
    return std::uint64_t{1} << 62 | std::uint64_t{8 * 128 / 16} << 32 | std::uint64_t{1} << 16 | address >> 4;
  }
  __device__ static std::uint64_t narrow(unsigned address) {
    return std::uint64_t{3} << 62 | std::uint64_t{8 * 32 / 16} << 32 | std::uint64_t{kPieceBytes / 16} << 16 |
           address >> 4;
  }
};

struct PanelMaps {
  CUtensorMap wide, narrow;
};

template <class P>
__device__ void copy_panel(unsigned char* to, const PanelMaps& maps, int column, int row, Barrier& full) {
  arrive_with_copies(full, P::kCopied);
  copy_box(to, maps.wide, column, row, 0, full);
  copy_box(to + P::kWideBytes, maps.narrow, 0, row, (column + P::kWide) / P::kPiece, full);
}

// Of the places of a ring: the copies have arrived; all readers have read them.
template <int kStages>
struct Barriers {
  Barrier full[kStages], empty[kStages];
  __device__ void initialize(int readers) {
    for (int i = 0; i < kStages; ++i) {
      kernels::initialize(full[i], 1);
      kernels::initialize(empty[i], readers);
    }
  }
};

// By every warp that has read.
__device__ inline void release(Barrier& empty) {
  if (lane_id() == 0) arrive(empty);
}

constexpr int kConsumers = 3, kConsumerRows = 64;  // warpgroups that attend
constexpr int kQueries = kConsumers * kConsumerRows, kKeys = 96, kStages = 3;
constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
inline constexpr int kCopierRegisters = 56, kConsumerRegisters = 152;

template <int kWidth>
using QueryPanel = Panel<kQueries, kWidth>;
template <int kWidth>
using KeyPanel = Panel<kKeys, kWidth>;
template <int kWidth>
constexpr int kSharedBytes = QueryPanel<kWidth>::kBytes + 2 * kStages* KeyPanel<kWidth>::kBytes +
                             1024;  // the swizzle needs an alignment of 1024 bytes

struct Maps {
  PanelMaps queries, keys;
};

struct AttentionSequences {
  const std::int32_t* ends;
  std::int64_t count;
};

struct Problem {
  AttentionSequences sequences;
  int groups, queries;  // queries: heads of a group
  int group, head;      // strides
  float scale;          // for exponentials of base 2
  bf16* out;
  float* log_sum_exp;

  __device__ int heads() const { return groups * queries; }
};

// A tile of queries.
struct Work {
  int group, head, row;  // the head in its group; the row is counted from the sequence's first
  int begin, count;      // tokens of the sequence

  __device__ int key_tiles() const { return (count + kKeys - 1) / kKeys; }
};

// Finds one tile of queries after the other. Blocks take them in another order in each round, so that none gets more
// than its share of the last, smaller tiles of sequences.
class Works {
 public:
  __device__ explicit Works(const Problem& problem) : problem_(problem), end_(problem.sequences.ends[1]) {}

  __device__ bool next(Work& work) {
    const int blocks = static_cast<int>(gridDim.x);
    const int place = round_ * blocks + (static_cast<int>(blockIdx.x) + round_) % blocks;
    ++round_;
    while (place >= before_ + of_head() * problem_.heads()) {
      before_ += of_head() * problem_.heads();
      if (++sequence_ == problem_.sequences.count) return false;
      begin_ = end_;
      end_ = problem_.sequences.ends[sequence_ + 1];
    }
    const int head = (place - before_) / of_head(), tile = (place - before_) % of_head();
    work = {head / problem_.queries, head % problem_.queries, tile * kQueries, begin_, end_ - begin_};
    return true;
  }

 private:
  __device__ int of_head() const { return (end_ - begin_ + kQueries - 1) / kQueries; }  // tiles

  const Problem& problem_;
  int round_ = 0, sequence_ = 0, before_ = 0, begin_ = 0, end_;
};

template <int kWidth>
struct Ring {
  unsigned char *queries, *keys, *values;
  Barriers<1>& of_queries;
  Barriers<kStages>&of_keys, &of_values;

  __device__ unsigned char* key(int place) const { return keys + place * KeyPanel<kWidth>::kBytes; }
  __device__ unsigned char* value(int place) const { return values + place * KeyPanel<kWidth>::kBytes; }
};

// The last, incomplete tile of keys comes first, because the first scores are not computed during another product.
template <int kWidth>
__device__ void copy_tiles(const Problem& problem, const Maps& maps, const Ring<kWidth>& ring) {
  Turn<1> query_turn;
  Turn<kStages> turn;
  Works works(problem);
  for (Work work; works.next(work); query_turn.advance()) {
    const int queries = work.group * problem.group, keys = queries + problem.queries * problem.head;
    wait(ring.of_queries.empty[0], query_turn.parity ^ 1);
    copy_panel<QueryPanel<kWidth>>(ring.queries, maps.queries, queries + work.head * problem.head,
                                   work.begin + work.row, ring.of_queries.full[0]);
    for (int tile = work.key_tiles() - 1; tile >= 0; --tile, turn.advance()) {
      const int row = work.begin + tile * kKeys, place = turn.place;
      wait(ring.of_keys.empty[place], turn.parity ^ 1);
      copy_panel<KeyPanel<kWidth>>(ring.key(place), maps.keys, keys, row, ring.of_keys.full[place]);
      wait(ring.of_values.empty[place], turn.parity ^ 1);
      copy_panel<KeyPanel<kWidth>>(ring.value(place), maps.keys, keys + problem.head, row, ring.of_values.full[place]);
    }
  }
}

__device__ inline float exp2_fast(float x) {
  float y;
  asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

using Scores = float[kKeys / 2];
using Probabilities = unsigned[kKeys / 16][4];

// A warpgroup's part of the output.
template <int kWidth>
struct Output {
  static constexpr int kWide = KeyPanel<kWidth>::kWide / 2;
  float wide[kWide], narrow[kWidth / 2 - kWide];

  __device__ float& operator[](int i) { return i < kWide ? wide[i] : narrow[i - kWide]; }
  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) (*this)[i] = 0;
  }
  __device__ void scale(const float (&factors)[2]) {
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) (*this)[i] *= factors[i / 2 % 2];
  }
  __device__ void hold() {
    kernels::hold(wide);
    kernels::hold(narrow);
  }
};

template <int kWidth>
__device__ void multiply_queries(Scores& scores, unsigned queries, int row, unsigned keys) {
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k)
    multiply(scores, QueryPanel<kWidth>::depth(queries, row, k), KeyPanel<kWidth>::depth(keys, 0, k), k > 0);
  end_products();
}

template <int kWidth>
__device__ void multiply_values(Output<kWidth>& out, const Probabilities& probabilities, unsigned values) {
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k) {
    multiply_add(out.wide, probabilities[k], KeyPanel<kWidth>::wide_columns(values, k * 16));
    multiply_add(out.narrow, probabilities[k], KeyPanel<kWidth>::narrow_columns(values, k * 16));
  }
  end_products();
}

__device__ inline void mask(Scores& scores, int valid) {
#pragma unroll
  for (int i = 0; i < kKeys / 2; ++i)
    if (i / 4 * 8 + column_of_lane() + i % 2 >= valid) scores[i] = -INFINITY;
}

// Of a thread's two rows: the scaled score whose exponential counts as 1, and this thread's part of the sum.
struct Softmax {
  float reference[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
};

__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// Moves a warp's references to the largest scores if one has grown by more than kTolerance. Exponentials up to
// 2^kTolerance lose no precision, and most tiles need no multiplication of the output by `factors`.
__device__ inline bool move_references(const Scores& scores, float scale, Softmax& softmax, float (&factors)[2]) {
  constexpr float kTolerance = 8;
  float top[2][2] = {{scores[0], scores[1]}, {scores[2], scores[3]}};
#pragma unroll
  for (int i = 4; i < kKeys / 2; ++i) top[i / 2 % 2][i % 2] = fmaxf(top[i / 2 % 2][i % 2], scores[i]);
  float next[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) next[half] = quad_max(fmaxf(top[half][0], top[half][1])) * scale;
  const bool grown = next[0] > softmax.reference[0] + kTolerance || next[1] > softmax.reference[1] + kTolerance;
  if (!__any_sync(~0u, grown)) return false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    next[half] = fmaxf(next[half], softmax.reference[half]);
    factors[half] = exp2_fast(softmax.reference[half] - next[half]);
    softmax.reference[half] = next[half];
    softmax.sum[half] *= factors[half];
  }
  return true;
}

__device__ inline void exponentiate(Scores& scores, float scale, Softmax& softmax) {
  float sum[2][2] = {};
#pragma unroll
  for (int i = 0; i < kKeys / 2; ++i) {
    scores[i] = exp2_fast(fmaf(scores[i], scale, -softmax.reference[i / 2 % 2]));
    sum[i / 2 % 2][i % 2] += scores[i];
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) softmax.sum[half] += sum[half][0] + sum[half][1];
}

// Without a branch that depends on the exponentials, the compiler moves the wait for the values' product above them. A
// sum is never negative.
__device__ inline void finish_exponentials(const Softmax& softmax) {
  if (__any_sync(~0u, softmax.sum[0] + softmax.sum[1] < 0)) asm volatile("trap;");
}

__device__ inline void round_to_bf16(const Scores& scores, Probabilities& probabilities) {
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) probabilities[k][i] = pack(scores[k * 8 + i * 2], scores[k * 8 + i * 2 + 1]);
}

constexpr int kFirstTurn = 1;  // id of a barrier
__device__ inline void wait_for_turn(int consumer) { wait_for_threads(kFirstTurn + consumer, 2 * kWarpgroup); }
__device__ inline void give_turn(int consumer) {
  const int next = kFirstTurn + (consumer + 1) % kConsumers;
  asm volatile("bar.arrive %0, %1;" ::"r"(next), "n"(2 * kWarpgroup) : "memory");
}

template <int kWidth>
__device__ void store(const Problem& problem, const Work& work, int consumer, Output<kWidth>& out,
                      const Softmax& softmax) {
  const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(softmax.sum[half]), inverse = 1 / sum;
    const int row = work.row + consumer * kConsumerRows + warp * 16 + row_of_lane() + half * 8;
    const bool valid = row < work.count;
    const int head = work.group * problem.queries + work.head;
    bf16* const to = problem.out + (static_cast<std::int64_t>(work.begin + row) * problem.heads() + head) * kWidth;
#pragma unroll
    for (int column = 0; column < kWidth; column += 16) {
      const int i = column / 2 + half * 2;
      store_row(to + column, {out[i] * inverse, out[i + 1] * inverse}, {out[i + 4] * inverse, out[i + 5] * inverse},
                valid);
    }
    if (!valid || lane_id() % 4 != 0) continue;
    constexpr float kLn2 = 0.69314718056f;
    const std::int64_t of_group = static_cast<std::int64_t>(work.begin) * problem.groups + work.group * work.count;
    problem.log_sum_exp[(of_group + row) * problem.queries + work.head] = (softmax.reference[half] + log2f(sum)) * kLn2;
  }
}

template <int kWidth>
__device__ void attend_to_tile(const Problem& problem, const Ring<kWidth>& ring, const Work& work, int consumer,
                               Turn<kStages> turn) {
  Scores scores;
  Probabilities probabilities;
  Output<kWidth> out;
  Softmax softmax;
  float factors[2];
  const unsigned queries = shared_address(ring.queries);
  const int first_row = consumer * kConsumerRows, tiles = work.key_tiles();
  wait(ring.of_keys.full[turn.place], turn.parity);
  begin_products();
  multiply_queries<kWidth>(scores, queries, first_row, shared_address(ring.key(turn.place)));
  wait_for_products<0>();
  hold(scores);
  release(ring.of_keys.empty[turn.place]);
  mask(scores, work.count - (tiles - 1) * kKeys);
  move_references(scores, problem.scale, softmax, factors);
  exponentiate(scores, problem.scale, softmax);
  round_to_bf16(scores, probabilities);
  out.clear();
  for (int i = 1; i < tiles; ++i) {
    const Turn<kStages> last = turn;
    turn.advance();
    wait(ring.of_keys.full[turn.place], turn.parity);
    wait_for_turn(consumer);
    begin_products();
    multiply_queries<kWidth>(scores, queries, first_row, shared_address(ring.key(turn.place)));
    wait(ring.of_values.full[last.place], last.parity);
    begin_products();
    multiply_values(out, probabilities, shared_address(ring.value(last.place)));
    give_turn(consumer);
    wait_for_products<1>();
    hold(scores);
    release(ring.of_keys.empty[turn.place]);
    const bool moved = move_references(scores, problem.scale, softmax, factors);
    exponentiate(scores, problem.scale, softmax);
    finish_exponentials(softmax);
    wait_for_products<0>();
    out.hold();
    hold(scores);
    release(ring.of_values.empty[last.place]);
    if (moved) out.scale(factors);
    round_to_bf16(scores, probabilities);
  }
  release(ring.of_queries.empty[0]);
  wait(ring.of_values.full[turn.place], turn.parity);
  begin_products();
  multiply_values(out, probabilities, shared_address(ring.value(turn.place)));
  wait_for_products<0>();
  out.hold();
  release(ring.of_values.empty[turn.place]);
  store(problem, work, consumer, out, softmax);
}

// For a warpgroup whose part of the tile has no rows.
template <int kWidth>
__device__ void skip_tile(const Ring<kWidth>& ring, const Work& work, int consumer, Turn<kStages> turn) {
  for (int i = 0; i < work.key_tiles(); ++i, turn.advance()) {
    wait(ring.of_keys.full[turn.place], turn.parity);
    release(ring.of_keys.empty[turn.place]);
    wait(ring.of_values.full[turn.place], turn.parity);
    release(ring.of_values.empty[turn.place]);
    if (i == 0) continue;
    wait_for_turn(consumer);
    give_turn(consumer);
  }
  release(ring.of_queries.empty[0]);
}

template <int kWidth>
__device__ void attend_to_tiles(const Problem& problem, const Ring<kWidth>& ring) {
  const int consumer = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup - 1, 0);  // uniform
  if (consumer == kConsumers - 1) give_turn(consumer);
  Turn<1> query_turn;
  Turn<kStages> turn;
  Works works(problem);
  for (Work work; works.next(work); query_turn.advance()) {
    wait(ring.of_queries.full[0], query_turn.parity);
    if (work.row + consumer * kConsumerRows < work.count)
      attend_to_tile(problem, ring, work, consumer, turn);
    else
      skip_tile(ring, work, consumer, turn);
    for (int i = 0; i < work.key_tiles(); ++i) turn.advance();
  }
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads, 1) forward(Problem problem, const __grid_constant__ Maps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char memory[];
  __shared__ Barriers<1> of_queries;
  __shared__ Barriers<kStages> of_keys, of_values;
  auto* const start = reinterpret_cast<unsigned char*>((reinterpret_cast<std::uintptr_t>(memory) + 1023) / 1024 * 1024);
  unsigned char* const keys = start + QueryPanel<kWidth>::kBytes;
  const Ring<kWidth> ring = {start, keys, keys + kStages * KeyPanel<kWidth>::kBytes, of_queries, of_keys, of_values};
  if (threadIdx.x == 0) {
    constexpr int kReaders = kConsumers * kWarpgroup / kWarp;
    of_queries.initialize(kReaders);
    of_keys.initialize(kReaders);
    of_values.initialize(kReaders);
    publish_barriers();
  }
  __syncthreads();
  wait_for_previous();
  if (threadIdx.x < kWarpgroup) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCopierRegisters));
    if (threadIdx.x == 0) copy_tiles(problem, maps, ring);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kConsumerRegisters));
    attend_to_tiles(problem, ring);
  }
#endif
}

}  // namespace attention

namespace {

using namespace attention;

constexpr const char* kHeads = "the heads of attention";

template <class P>
PanelMaps panel_maps(const Tensor& x) {
  const std::int64_t tokens = x.sizes[0], token = x.strides[0];
  const std::int64_t columns = (x.sizes[1] - 1) * x.strides[1] + (x.sizes[2] - 1) * x.strides[2] + x.sizes[3];
  const Boxes wide = {
      {columns, tokens, 1}, {token, token * tokens}, {P::kWide, P::kRows, 1}, CU_TENSOR_MAP_SWIZZLE_128B};
  const Boxes narrow = {{P::kPiece, tokens, columns / P::kPiece},
                        {token, P::kPiece},
                        {P::kPiece, P::kRows, P::kNarrow / P::kPiece},
                        CU_TENSOR_MAP_SWIZZLE_32B};
  const bf16* const data = x;
  return {tensor_map(data, wide, kHeads), tensor_map(data, narrow, kHeads)};
}

template <int kWidth>
void launch(const Tensor& groups, const Problem& problem, const Queue& queue) {
  const Maps maps = {panel_maps<QueryPanel<kWidth>>(groups), panel_maps<KeyPanel<kWidth>>(groups)};
  launch_kernel(forward<kWidth>, {multiprocessors(), kThreads, kSharedBytes<kWidth>, queue}, problem, maps);
}

}  // namespace

bool has_attention(const Tensor& groups) {
  const std::int64_t width = groups.sizes[3];
  if (width != 80 && width != 96) return false;  // 112 columns would need too many registers
  return groups.strides[2] % 16 == 0 && groups.strides[1] % 16 == 0 && is_aligned(groups) &&
         runs_on_hopper(forward<80>);
}

void attention_forward(const Tensor& groups, const Tensor& ends, double scale, const Tensor& out,
                       const Tensor& log_sum_exp, const Queue& queue) {
  constexpr double kLog2E = 1.4426950408889634;
  const Problem problem = {.sequences = {ends, ends.rows() - 1},
                           .groups = static_cast<int>(groups.sizes[1]),
                           .queries = static_cast<int>(groups.sizes[2] - 2),
                           .group = static_cast<int>(groups.strides[1]),
                           .head = static_cast<int>(groups.strides[2]),
                           .scale = static_cast<float>(scale * kLog2E),
                           .out = out,
                           .log_sum_exp = log_sum_exp};
  groups.sizes[3] == 80 ? launch<80>(groups, problem, queue) : launch<96>(groups, problem, queue);
}

}  // namespace braid::kernels
