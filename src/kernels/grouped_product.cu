// The products of experts with their rows on Hopper, for elements of bf16 or fp8.
//
// Blocks stay on their multiprocessors and take every gridDim.x-th tile of the result, kTileRows x kTileColumns, of
// one expert after the other; the tiles of a row of tiles follow one another, because they read the same left operand.
// The first warpgroup of a block copies both operands' parts of a tile, kDepth deep, to a ring of kStages places in
// shared memory; the others multiply them, each 64 of the tile's rows, and write the result. A place is `full` when its
// copies have arrived, and `empty` when all multipliers have read it. Square tiles read the fewest bytes per product.
//
// Products of fp8 take half as long as those of bf16, so blocks are paired in clusters of two to read less: they take
// two tiles that share an operand, one above the other, or two neighbours in an expert's last row of tiles. Each copies
// a half of the shared operand to both. The result is multiplied by a scale for each of its rows and columns. The
// columns' scales of a tile arrive in shared memory with its first place.
#include "kernels/hopper.cuh"
#include "kernels/moe.h"

namespace braid::kernels {
namespace grouped {  // with a name, because what targets other than sm_90a do not use is then no warning

enum class Form {
  kTransposed,  // rows times matrices^T: the depth of both operands is contiguous
  kPlain,       // rows times matrices: that of the right one is not
  kColumns      // columns times columns: the depth is the rows of an expert, and contiguous in fp8 only
};

constexpr int kMultiplierRows = 64, kStages = 4;

// How a product is divided. Precise sums of fp8 leave the tensor core, which adds with 13 bits, every kDepth terms.
template <class Element_, Form kForm_, int kMultipliers_, int kTileColumns_>
struct Shape {
  using Element = Element_;
  static constexpr Form kForm = kForm_;
  static constexpr bool kIsFp8 = sizeof(Element) == 1, kIsPaired = kIsFp8,
                        kIsPrecise = kIsFp8 && kForm == Form::kColumns;
  static constexpr bool kLeftDepthMajor = kIsFp8 || kForm != Form::kColumns,
                        kRightDepthMajor = kIsFp8 || kForm == Form::kTransposed;
  static constexpr int kMultipliers = kMultipliers_;  // warpgroups
  static constexpr int kTileRows = kMultipliers * kMultiplierRows, kTileColumns = kTileColumns_;
  static constexpr int kDepth = kSwizzledBytes / sizeof(Element), kStep = kProductBytes / sizeof(Element);
  static constexpr int kBlocks = kIsPaired ? 2 : 1, kThreads = (1 + kMultipliers) * kWarpgroup;
  // A multiprocessor has 512 registers for a thread of each warpgroup; a multiplier's hold its sums.
  static constexpr int kMultiplierRegisters = kMultipliers == 2 ? 224 : 152, kCopierRegisters = 56;

  // Parts of both operands, rows of kSwizzledBytes. Where the depth is not contiguous, kDepth of these rows are a block
  // of kMultiplierRows of the other dimension.
  static constexpr int kBlock = kMultiplierRows * kDepth;
  struct Place {
    Element left[kMultipliers][kBlock], right[kTileColumns * kDepth];
  };
  // When a tile's first place is free, the tiles before the last kStages ones are written, and their scales are free.
  static constexpr int kScales = kStages + 1;
  struct Memory {
    Place places[kStages];
    float scales[kIsFp8 ? kScales : 1][kTileColumns];
  };
  static constexpr int kSharedBytes = sizeof(Memory) + 1024;  // the swizzle needs an alignment of 1024 bytes
};

template <class S>
struct Ring {
  typename S::Memory& memory;
  Barrier *full, *empty;
};

// Expert e has rows ends[e - 1] to ends[e], which may be none.
struct ExpertEnds {
  const std::int32_t* ends;
  std::int64_t experts;

  explicit ExpertEnds(const Tensor& x) : ends(x), experts(x.rows()) {}
};

template <class T>
struct Problem {
  ExpertEnds experts;
  int rows, columns, depth;  // of an expert's result; rows or depth are those of the expert, by the form
  T* result;
  std::int64_t stride;
  bool add;
  const float *row_scales = nullptr, *column_scales = nullptr;  // in fp8
};

// A tile of the result.
struct Part {
  int expert, row, column;  // the row is counted from the expert's first
  int begin, count;         // rows of the expert
  bool shares_left;         // with the other block of a pair; else they share the right operand
};

__device__ constexpr int tiles_for(int size, int tile) { return (size + tile - 1) / tile; }

// Finds one tile of the result after the other.
template <class S>
class Tiles {
 public:
  template <class T>
  __device__ explicit Tiles(const Problem<T>& problem)
      : experts_(problem.experts), rows_(problem.rows), across_(tiles_for(problem.columns, S::kTileColumns)),
        next_(static_cast<int>(blockIdx.x) / S::kBlocks), end_(experts_.ends[0]) {}

  __device__ bool next(Part& tile) {
    while (next_ >= before_ + of_expert()) {
      before_ += of_expert();
      if (++expert_ == experts_.experts) return false;
      begin_ = end_;
      end_ = experts_.ends[expert_];
    }
    const int place = next_ - before_;
    int row = place / across_, column = place % across_;
    const bool shares_left = S::kIsPaired && row == down() / S::kBlocks;
    if constexpr (S::kIsPaired) {
      const int block = static_cast<int>(blockIdx.x) % S::kBlocks;
      (shares_left ? column : row) = (shares_left ? column : row) * S::kBlocks + block;
      if (shares_left) row *= S::kBlocks;
    }
    tile = {expert_, row * S::kTileRows, column * S::kTileColumns, begin_, end_ - begin_, shares_left};
    next_ += static_cast<int>(gridDim.x) / S::kBlocks;
    return true;
  }

 private:
  __device__ int down() const { return tiles_for(S::kForm == Form::kColumns ? rows_ : end_ - begin_, S::kTileRows); }
  // Tiles, or pairs of them.
  __device__ int of_expert() const {
    return down() / S::kBlocks * across_ + down() % S::kBlocks * tiles_for(across_, S::kBlocks);
  }

  ExpertEnds experts_;
  int rows_, across_, next_, expert_ = 0, before_ = 0, begin_ = 0, end_;
};

template <class S, class T>
__device__ int depth_of(const Problem<T>& problem, const Part& tile) {
  return S::kForm == Form::kColumns ? tile.count : problem.depth;
}

// kRows rows of kSwizzledBytes, the first of them at (x, y, z). Of a shared operand each block of a pair copies a half
// to both; else it copies two halves.
template <class S, int kRows>
__device__ void copy_rows(typename S::Element* to, const CUtensorMap& tensor, int x, int y, int z, bool is_shared,
                          Barrier& full) {
  if constexpr (!S::kIsPaired) {
    copy_box(to, tensor, x, y, z, full);
  } else {
    constexpr int kHalf = kRows / 2;
    static_assert(kHalf % 8 == 0, "the swizzle repeats every 8 rows");
    const int block = static_cast<int>(blockIdx.x) % 2;
    if (is_shared)
      copy_box_to_blocks(to + block * kHalf * S::kDepth, tensor, x, y + block * kHalf, z, full, 0b11);
    else
      for (int half = 0; half < 2; ++half)
        copy_box(to + half * kHalf * S::kDepth, tensor, x, y + half * kHalf, z, full);
  }
}

template <class S>
__device__ void copy_place(typename S::Place& to, const CUtensorMap& left, const CUtensorMap& right, const Part& tile,
                           int depth, Barrier& full) {
  arrive_with_copies(full, sizeof(to));
  constexpr bool kColumns = S::kForm == Form::kColumns;
  const int row = kColumns ? tile.row : tile.begin + tile.row, matrix = kColumns ? 0 : tile.expert;
  if (kColumns) depth += tile.begin;
  if constexpr (S::kLeftDepthMajor)
    copy_rows<S, S::kTileRows>(to.left[0], left, depth, row, 0, tile.shares_left, full);
  else
    for (int i = 0; i < S::kMultipliers; ++i) copy_box(to.left[i], left, row + i * kMultiplierRows, depth, 0, full);
  if constexpr (S::kRightDepthMajor)
    copy_rows<S, S::kTileColumns>(to.right, right, depth, tile.column, matrix, !tile.shares_left, full);
  else
    for (int i = 0; i < S::kTileColumns / kMultiplierRows; ++i)
      copy_box(to.right + i * S::kBlock, right, tile.column + i * kMultiplierRows, depth, matrix, full);
}

template <class S, class T>
__device__ void copy_scales(float* to, const Problem<T>& problem, const Part& tile, Barrier& full) {
  const int columns = min(S::kTileColumns, problem.columns - tile.column);
  if (columns <= 0) return;
  const std::int64_t first = S::kForm == Form::kColumns ? 0 : std::int64_t{tile.expert} * problem.columns;
  const int bytes = columns * static_cast<int>(sizeof(float));
  expect_copies(full, bytes);
  copy_bytes(to, problem.column_scales + first + tile.column, bytes, full);
}

template <class S, class T>
__device__ void copy_tiles(const Problem<T>& problem, const CUtensorMap& left, const CUtensorMap& right,
                           const Ring<S>& ring) {
  Turn<kStages> turn;
  Turn<S::kScales> scales;
  Tiles<S> tiles(problem);
  for (Part tile; tiles.next(tile);) {
    const int end = depth_of<S>(problem, tile);
    for (int depth = 0; depth < end; depth += S::kDepth, turn.advance()) {
      Barrier& full = ring.full[turn.place];
      wait(ring.empty[turn.place], turn.parity ^ 1);
      if (S::kIsFp8 && depth == 0) copy_scales<S>(ring.memory.scales[scales.place], problem, tile, full);
      copy_place<S>(ring.memory.places[turn.place], left, right, tile, depth, full);
    }
    if (end > 0) scales.advance();
  }
}

// By a warp that has read a place; of a pair, both blocks copy to it.
template <class S>
__device__ void arrive_at_empty(Barrier& empty) {
  if constexpr (S::kIsPaired) {
    if (lane_id() < 2) arrive_in_cluster(empty, lane_id());
  } else {
    if (lane_id() == 0) arrive(empty);
  }
}

// Rows of the next expert must not count. A multiplier clears all that it reads; others may write the same zeros.
template <class S>
__device__ void clear_rows(typename S::Place& place, int valid, int multiplier) {
  const auto clear = [&](typename S::Element* block) {
    auto* const units = reinterpret_cast<uint4*>(block);
    constexpr int kUnits = S::kBlock * sizeof(*block) / sizeof(uint4), kUnitsOfRow = kSwizzledBytes / sizeof(uint4);
    for (int i = valid * kUnitsOfRow + threadIdx.x % kWarpgroup; i < kUnits; i += kWarpgroup) units[i] = uint4();
  };
  clear(place.left[multiplier]);
  for (int i = 0; i < S::kTileColumns / kMultiplierRows; ++i) clear(place.right + i * S::kBlock);
  publish_stores();
  wait_for_threads(1 + multiplier, kWarpgroup);
}

// A thread's sums of a tile.
template <class S>
using Sums = float[S::kTileColumns / 2];

template <int kSize>
__device__ void clear(float (&sum)[kSize]) {
#pragma unroll
  for (float& x : sum) x = 0;
}

// Starts a product of a place's depth from kStep * step on.
template <class S>
__device__ void multiply_step(Sums<S>& sum, const typename S::Place& place, int multiplier, int step, bool add) {
  using Left = Operand<S::kLeftDepthMajor, S::kDepth>;
  using Right = Operand<S::kRightDepthMajor, S::kDepth>;
  const std::uint64_t left = Left::descriptor(place.left[multiplier]) + step * Left::kStep,
                      right = Right::descriptor(place.right) + step * Right::kStep;
  if constexpr (S::kIsFp8)
    multiply_fp8(sum, left, right, add);
  else
    multiply<S::kLeftDepthMajor, S::kRightDepthMajor>(sum, left, right, add);
}

template <class S>
__device__ void multiply_place(Sums<S>& sum, const typename S::Place& place, int multiplier, bool add) {
  begin_products();
#pragma unroll
  for (int step = 0; step < S::kDepth / S::kStep; ++step)
    multiply_step<S>(sum, place, multiplier, step, add || step > 0);
  end_products();
}

template <class S>
__device__ void multiply_tile(Sums<S>& sum, const Ring<S>& ring, Turn<kStages>& turn, int depth, int multiplier) {
  int last = -1;  // place whose products are under way
  for (int left_over = depth; left_over > 0; left_over -= S::kDepth, turn.advance()) {
    typename S::Place& place = ring.memory.places[turn.place];
    wait(ring.full[turn.place], turn.parity);
    if constexpr (!S::kLeftDepthMajor)
      if (left_over < S::kDepth) clear_rows<S>(place, left_over, multiplier);
    multiply_place<S>(sum, place, multiplier, /*add=*/last >= 0);
    wait_for_products<1>();
    if (last >= 0) arrive_at_empty<S>(ring.empty[last]);
    last = turn.place;
  }
  wait_for_products<0>();
  hold(sum);
  if (last >= 0) arrive_at_empty<S>(ring.empty[last]);
}

// The product of a part of a place's depth, to the end: the compiler puts products with conditions between them one
// after the other anyway.
template <class S>
__device__ void multiply_part(Sums<S>& sum, const typename S::Place& place, int multiplier, int depth) {
#pragma unroll 1
  for (int step = 0; step * S::kStep < depth; ++step) {
    begin_products();
    multiply_step<S>(sum, place, multiplier, step, /*add=*/step > 0);
    end_products();
    wait_for_products<0>();
    hold(sum);
  }
}

template <class S>
__device__ void multiply_tile_precisely(Sums<S>& sum, const Ring<S>& ring, Turn<kStages>& turn, int depth,
                                        int multiplier) {
  clear(sum);
  for (; depth > 0; depth -= S::kDepth, turn.advance()) {
    Sums<S> part;
    wait(ring.full[turn.place], turn.parity);
    if (depth >= S::kDepth) {
      multiply_place<S>(part, ring.memory.places[turn.place], multiplier, /*add=*/false);
      wait_for_products<0>();
      hold(part);
    } else {
      multiply_part<S>(part, ring.memory.places[turn.place], multiplier, depth);
    }
    arrive_at_empty<S>(ring.empty[turn.place]);
#pragma unroll
    for (int i = 0; i < S::kTileColumns / 2; ++i) sum[i] += part[i];
  }
}

// For a multiplier whose part of the tile has no elements.
template <class S>
__device__ void skip_tile(const Ring<S>& ring, Turn<kStages>& turn, int depth) {
  for (int left_over = depth; left_over > 0; left_over -= S::kDepth, turn.advance()) {
    wait(ring.full[turn.place], turn.parity);
    __syncwarp();
    arrive_at_empty<S>(ring.empty[turn.place]);
  }
}

// A multiplier's part of a tile, and how many of its rows and columns exist.
template <class T>
struct Target {
  T* data;
  std::int64_t stride;
  int rows, columns;
  const float* row_scales;
};

template <class S, class T>
__device__ Target<T> target_of(const Problem<T>& problem, const Part& tile, int multiplier) {
  constexpr bool kColumns = S::kForm == Form::kColumns;
  const int row = tile.row + multiplier * kMultiplierRows;
  const std::int64_t first = kColumns ? std::int64_t{tile.expert} * problem.rows : tile.begin;
  return {problem.result + (first + row) * problem.stride + tile.column, problem.stride,
          (kColumns ? problem.rows : tile.count) - row, problem.columns - tile.column,
          problem.row_scales + (kColumns ? 0 : first) + row};
}

// The lower of two lanes gives its b for the a of the upper one.
template <class T>
__device__ void exchange(T& a, T& b, int distance) {
  const bool is_upper = lane_id() & distance;
  const T got = __shfl_xor_sync(~0u, is_upper ? a : b, distance);
  (is_upper ? a : b) = got;
}

// The first of a thread's two rows; the other one is 8 below.
__device__ inline int row_of_thread() {
  return static_cast<int>(threadIdx.x) % kWarpgroup / kWarp * 16 + row_of_lane();
}

template <int kSize, class T>
__device__ void scale(float (&sum)[kSize], const Target<T>& to, const float* column_scales) {
  const int row = row_of_thread();
  const float upper = row < to.rows ? to.row_scales[row] : 0, lower = row + 8 < to.rows ? to.row_scales[row + 8] : 0;
#pragma unroll
  for (int i = 0; i < kSize; i += 4) {
    const float2 columns = *reinterpret_cast<const float2*>(column_scales + i * 2 + lane_id() % 4 * 2);
    sum[i] *= upper * columns.x;
    sum[i + 1] *= upper * columns.y;
    sum[i + 2] *= lower * columns.x;
    sum[i + 3] *= lower * columns.y;
  }
}

// Of each 8 columns of a row, four lanes have 2 each. They exchange them, so that each lane writes 16 bytes.
template <int kSize>
__device__ void write(const float (&sum)[kSize], const Target<bf16>& to, bool) {
#pragma unroll
  for (int first = 0; first < kSize * 2; first += 32) {
    if (first >= to.columns) return;
    const int column = first + lane_id() % 4 * 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of_thread() + half * 8;
      unsigned pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = first / 2 + i * 4 + half * 2;
        pairs[i] = pack(sum[at], sum[at + 1]);
      }
      exchange(pairs[0], pairs[1], 1);
      exchange(pairs[2], pairs[3], 1);
      exchange(pairs[0], pairs[2], 2);
      exchange(pairs[1], pairs[3], 2);
      if (row < to.rows && column < to.columns)
        *reinterpret_cast<uint4*>(to.data + row * to.stride + column) = {pairs[0], pairs[1], pairs[2], pairs[3]};
    }
  }
}

template <int kSize>
__device__ void write(const float (&sum)[kSize], const Target<float>& to, bool add) {
#pragma unroll
  for (int first = 0; first < kSize * 2; first += 16) {
    if (first >= to.columns) return;
    const int column = first + lane_id() % 2 * 8 + lane_id() % 4 / 2 * 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of_thread() + half * 8, at = first / 2 + half * 2;
      float4 values = {sum[at], sum[at + 1], sum[at + 4], sum[at + 5]};
      exchange(values.x, values.z, 1);
      exchange(values.y, values.w, 1);
      if (row >= to.rows || column >= to.columns) continue;
      float* const data = to.data + row * to.stride + column;
      if (add)
        add_in_l2(data, values);
      else
        *reinterpret_cast<float4*>(data) = values;
    }
  }
}

template <class S, class T>
__device__ void multiply_tiles(const Problem<T>& problem, const Ring<S>& ring) {
  const int multiplier = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
  Turn<kStages> turn;
  Turn<S::kScales> scales;
  Tiles<S> tiles(problem);
  for (Part tile; tiles.next(tile);) {
    const int depth = depth_of<S>(problem, tile);
    const Target<T> target = target_of<S>(problem, tile, multiplier);
    if (target.rows <= 0 || target.columns <= 0) {
      skip_tile<S>(ring, turn, depth);
    } else {
      Sums<S> sum;
      if (depth == 0) clear(sum);
      if constexpr (S::kIsPrecise)
        multiply_tile_precisely<S>(sum, ring, turn, depth, multiplier);
      else
        multiply_tile<S>(sum, ring, turn, depth, multiplier);
      if (S::kIsFp8 && depth > 0) scale(sum, target, ring.memory.scales[scales.place]);
      write(sum, target, problem.add);
    }
    if (depth > 0) scales.advance();
  }
}

template <class S, class T>
__global__ void __launch_bounds__(S::kThreads, 1)
    grouped_product(Problem<T> problem, const __grid_constant__ CUtensorMap left,
                    const __grid_constant__ CUtensorMap right) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char unaligned[];
  __shared__ Barrier full[kStages], empty[kStages];
  const Ring<S> ring = {
      *reinterpret_cast<typename S::Memory*>((reinterpret_cast<std::uintptr_t>(unaligned) + 1023) / 1024 * 1024), full,
      empty};
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      initialize(full[i], 1);
      initialize(empty[i], S::kBlocks * S::kMultipliers * kWarpgroup / kWarp);
    }
    publish_barriers();
    prefetch_descriptor(left);
    prefetch_descriptor(right);
  }
  __syncthreads();
  if constexpr (S::kIsPaired) wait_for_cluster();
  wait_for_previous();
  if (threadIdx.x < kWarpgroup) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::kCopierRegisters));
    if (threadIdx.x == 0) copy_tiles<S>(problem, left, right, ring);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::kMultiplierRegisters));
    multiply_tiles<S>(problem, ring);
  }
  if constexpr (S::kIsPaired) {
    __syncwarp();
    wait_for_cluster();  // the other block may still copy to this one, and arrive here
  }
#endif
}

// [matrices][rows][columns]
template <class Element>
struct Matrices {
  const Element* data;
  std::int64_t columns, rows, count, stride;
};

// Its boxes have `box_rows` rows of kSwizzledBytes.
template <class Element>
CUtensorMap map_of(const Matrices<Element>& x, int box_rows) {
  return tensor_map(x.data,
                    {{x.columns, x.rows, x.count},
                     {x.stride, x.stride * x.rows},
                     {kSwizzledBytes / static_cast<int>(sizeof(Element)), box_rows, 1},
                     CU_TENSOR_MAP_SWIZZLE_128B},
                    "the matrices of a grouped product");
}

template <class S, class T>
void launch(const Problem<T>& problem, const Matrices<typename S::Element>& left,
            const Matrices<typename S::Element>& right, cudaStream_t stream) {
  CUtensorMap left_map = map_of(left, S::kLeftDepthMajor ? S::kTileRows / S::kBlocks : S::kDepth),
              right_map = map_of(right, S::kRightDepthMajor ? S::kTileColumns / S::kBlocks : S::kDepth);
  const auto kernel = grouped_product<S, T>;
  const auto blocks = static_cast<unsigned>(multiprocessors() / S::kBlocks * S::kBlocks);
  launch_kernel(kernel, {blocks, S::kThreads, S::kSharedBytes, stream, S::kBlocks}, problem, left_map, right_map);
}

}  // namespace grouped

namespace {

using namespace grouped;

template <Form kForm>
using Bf16Shape = Shape<bf16, kForm, /*kMultipliers=*/3, /*kTileColumns=*/192>;  // tiles of 256 x 192 were slower

template <class T>
Problem<T> problem_of(const Tensor& ends, std::int64_t rows, std::int64_t columns, std::int64_t depth,
                      const Tensor& result, bool add) {
  return {ExpertEnds(ends),
          static_cast<int>(rows),
          static_cast<int>(columns),
          static_cast<int>(depth),
          result,
          result.strides[result.dims - 2],
          add};
}

using Fp8 = std::uint8_t;  // the bits of an e4m3
using RowsShape = Shape<Fp8, Form::kTransposed, /*kMultipliers=*/3, /*kTileColumns=*/192>;
using ColumnsShape = Shape<Fp8, Form::kColumns, 2, 160>;  // precise sums need twice the registers
static_assert(kGroupMultiple % ColumnsShape::kStep == 0, "a product must not reach into the next expert");

// x: [rows, columns] or [count, rows, columns]
Matrices<Fp8> matrices_of(const Tensor& x) {
  const std::int64_t columns = x.sizes[x.dims - 1];
  return {x, columns, x.sizes[x.dims - 2], x.dims == 3 ? x.sizes[0] : 1, columns};
}

}  // namespace

bool has_grouped_products() { return runs_on_hopper(grouped_product<Bf16Shape<Form::kPlain>, bf16>); }

void multiply_rows(const Tensor& rows, const Tensor& ends, const Tensor& matrices, bool transposed,
                   const Tensor& result, const Queue& queue) {
  const std::int64_t width = rows.columns();
  const auto problem = problem_of<bf16>(ends, 0, result.columns(), width, result, false);
  const Matrices<bf16> left = {rows, width, rows.rows(), 1, rows.strides[0]};
  const Matrices<bf16> right = {matrices, matrices.sizes[2], matrices.sizes[1], matrices.sizes[0], matrices.sizes[2]};
  if (transposed)
    launch<Bf16Shape<Form::kTransposed>>(problem, left, right, queue);
  else
    launch<Bf16Shape<Form::kPlain>>(problem, left, right, queue);
}

void multiply_columns(const Tensor& left, const Tensor& right, const Tensor& ends, const Tensor& result, bool overwrite,
                      const Queue& queue) {
  with_type(result, [&]<class T>() {
    const auto problem = problem_of<T>(ends, left.columns(), right.columns(), 0, result, !overwrite);
    launch<Bf16Shape<Form::kColumns>>(problem, {left, left.columns(), left.rows(), 1, left.strides[0]},
                                      {right, right.columns(), right.rows(), 1, right.strides[0]}, queue);
  });
}

void multiply_fp8_rows(const Fp8Matrices& rows, const Tensor& ends, const Fp8Matrices& matrices, const Tensor& result,
                       const Queue& queue) {
  auto problem = problem_of<bf16>(ends, 0, result.columns(), rows.values.columns(), result, false);
  problem.row_scales = rows.scales;
  problem.column_scales = matrices.scales;
  launch<RowsShape>(problem, matrices_of(rows.values), matrices_of(matrices.values), queue);
}

void multiply_fp8_columns(const Fp8Matrices& left, const Fp8Matrices& right, const Tensor& padded_ends,
                          const Tensor& result, bool overwrite, const Queue& queue) {
  with_type(result, [&]<class T>() {
    auto problem = problem_of<T>(padded_ends, left.values.rows(), right.values.rows(), 0, result, !overwrite);
    problem.row_scales = left.scales;
    problem.column_scales = right.scales;
    launch<ColumnsShape>(problem, matrices_of(left.values), matrices_of(right.values), queue);
  });
}

}  // namespace braid::kernels
