// Blocks stay on their multiprocessors and take every gridDim.x-th tile of the result, kTileRows x kTileColumns, of
// one expert after the other; the tiles of a row of tiles follow one another, because they read the same left operand.
// Of a block's three warpgroups the first copies both operands' parts of a tile, kDepth deep, to a ring of kStages
// places in shared memory; the other two multiply them, each half of the tile's rows, and write the result. A place is
// `full` when its copies have arrived, and `empty` when both have read it.
#include <algorithm>

#include "kernels/grouped_product.h"
#include "kernels/hopper.cuh"

namespace braid::kernels {
namespace {

enum class Form {
  kTransposed,  // rows times matrices^T: the depth of both operands is contiguous
  kPlain,       // rows times matrices: that of the right one is not
  kColumns      // columns times columns: the depth is the rows of an expert
};

constexpr int kTileRows = 128, kDepth = 64;
constexpr int kMultipliers = 2;  // warpgroups
constexpr int kThreads = (1 + kMultipliers) * kWarpgroup;
constexpr int kBlockBytes = kSwizzledRow * kDepth * sizeof(bf16);
constexpr int kCopierRegisters = 40, kMultiplierRegisters = 232;
constexpr int kChunk = 64;  // columns of bf16 that a warp writes at a time

template <Form kForm, int kTileColumns>
struct Shape {
  static constexpr bool kLeftDepthMajor = kForm != Form::kColumns, kRightDepthMajor = kForm == Form::kTransposed;
  static constexpr int kLeftBlocks = kTileRows / 64, kRightBlocks = kTileColumns / 64;
  static constexpr int kStages = kTileColumns > 192 ? 4 : 5;
  using Left = Operand<kLeftDepthMajor, kDepth>;
  using Right = Operand<kRightDepthMajor, kDepth>;

  struct Place {
    unsigned char left[kLeftBlocks * kBlockBytes], right[kRightBlocks * kBlockBytes];
  };
  struct Shared {
    Place places[kStages];
    bf16 chunks[kMultipliers * kWarpgroup / kWarp][16 * kChunk];
  };
  static constexpr int kSharedBytes = sizeof(Shared) + 1024;  // the swizzle needs an alignment of 1024 bytes
};

template <class T>
struct Problem {
  ExpertEnds experts;
  int rows, columns, depth;  // of an expert's result; rows or depth are those of the expert, by the form
  T* result;
  std::int64_t stride;
  bool add;
};

struct Tile {
  int expert, row, column;  // of the result's tile: the row is counted from the expert's first
  int begin, count;         // rows of the expert
};

// Finds one tile after the other.
template <Form kForm, int kTileColumns>
class Tiles {
 public:
  template <class T>
  __device__ explicit Tiles(const Problem<T>& problem)
      : experts_(problem.experts),
        rows_(problem.rows),
        across_((problem.columns + kTileColumns - 1) / kTileColumns),
        next_(static_cast<int>(blockIdx.x)),
        end_(experts_.ends[0]) {}

  __device__ bool next(Tile& tile) {
    while (next_ >= before_ + of_expert()) {
      before_ += of_expert();
      if (++expert_ == experts_.experts) return false;
      begin_ = end_;
      end_ = experts_.ends[expert_];
    }
    const int place = next_ - before_;
    tile = {expert_, place / across_ * kTileRows, place % across_ * kTileColumns, begin_, end_ - begin_};
    next_ += static_cast<int>(gridDim.x);
    return true;
  }

 private:
  __device__ int of_expert() const {
    const int rows = kForm == Form::kColumns ? rows_ : end_ - begin_;
    return (rows + kTileRows - 1) / kTileRows * across_;
  }

  ExpertEnds experts_;
  int rows_, across_, next_, expert_ = 0, before_ = 0, begin_ = 0, end_;
};

// A place in the ring, and how often the ring was passed through.
template <int kStages>
struct Turn {
  int place = 0;
  unsigned parity = 0;
  __device__ void advance() {
    if (++place < kStages) return;
    place = 0;
    parity ^= 1;
  }
};

template <Form kForm, class T>
__device__ int depth_of(const Problem<T>& problem, const Tile& tile) {
  return kForm == Form::kColumns ? tile.count : problem.depth;
}

template <Form kForm, int kTileColumns>
__device__ void copy_place(typename Shape<kForm, kTileColumns>::Place& to, const CUtensorMap& left,
                           const CUtensorMap& right, const Tile& tile, int depth, Barrier& full) {
  using S = Shape<kForm, kTileColumns>;
  arrive_with_copies(full, sizeof(to));
  const int first_row = kForm == Form::kColumns ? tile.begin : 0, matrix = kForm == Form::kColumns ? 0 : tile.expert;
  if constexpr (S::kLeftDepthMajor)
    copy_box(to.left, left, depth, tile.begin + tile.row, 0, full);
  else
    for (int i = 0; i < S::kLeftBlocks; ++i)
      copy_box(to.left + i * kBlockBytes, left, tile.row + i * kSwizzledRow, first_row + depth, 0, full);
  if constexpr (S::kRightDepthMajor)
    copy_box(to.right, right, depth, tile.column, matrix, full);
  else
    for (int i = 0; i < S::kRightBlocks; ++i)
      copy_box(to.right + i * kBlockBytes, right, tile.column + i * kSwizzledRow, first_row + depth, matrix, full);
}

// Rows of the next expert must not count. By all multipliers.
template <class Place>
__device__ void clear_rows(Place& place, int valid, int thread) {
  auto* const units = reinterpret_cast<uint4*>(&place);
  constexpr int kUnits = kBlockBytes / 16, kUnitsOfRow = 128 / 16;
  for (int block = 0; block < static_cast<int>(sizeof(Place)) / kBlockBytes; ++block)
    for (int i = valid * kUnitsOfRow + thread; i < kUnits; i += kMultipliers * kWarpgroup)
      units[block * kUnits + i] = uint4();
  publish_stores();
  wait_for_threads(1, kMultipliers * kWarpgroup);
}

// What a warp writes of its tile: 16 rows, of which `rows` exist, and the columns that exist.
template <class T>
struct Target {
  T* data;
  std::int64_t stride;
  int rows, columns;
};

template <int kSize>
__device__ void write(const float (&sum)[kSize], const Target<bf16>& to, bool, bf16* buffer) {
  const kernels::Tile<kChunk> chunk = {buffer};
  const int lane = lane_id(), row = lane % 16, unit = lane / 16;
#pragma unroll
  for (int first = 0; first < kSize * 2; first += kChunk) {
    if (first >= to.columns) return;
#pragma unroll
    for (int i = 0; i < kChunk / 8; i += 2) {
      unsigned pairs[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = (first / 8 + i) * 4 + j * 2;
        const __nv_bfloat162 pair = __floats2bfloat162_rn(sum[at], sum[at + 1]);
        pairs[j] = *reinterpret_cast<const unsigned*>(&pair);
      }
      store_matrices(chunk.unit(row, i + unit), pairs);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      const int r = i + lane / 8, column = lane % 8 * 8;
      const uint4 values = *reinterpret_cast<const uint4*>(chunk.unit(r, lane % 8));
      if (r < to.rows && first + column < to.columns)
        *reinterpret_cast<uint4*>(to.data + r * to.stride + first + column) = values;
    }
    __syncwarp();
  }
}

template <int kSize>
__device__ void write(const float (&sum)[kSize], const Target<float>& to, bool add, bf16*) {
  const int lane = lane_id();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = half * 8 + lane / 4;
    if (row >= to.rows) return;
    float* const data = to.data + row * to.stride;
#pragma unroll
    for (int i = 0; i < kSize / 4; ++i) {
      const int column = i * 8 + lane % 4 * 2;
      if (column >= to.columns) break;
      auto* const pair = reinterpret_cast<float2*>(data + column);
      const float2 old = add ? *pair : float2();
      *pair = {old.x + sum[i * 4 + half * 2], old.y + sum[i * 4 + half * 2 + 1]};
    }
  }
}

// The part of a tile that a warp writes; `warp` counts those of the multipliers.
template <Form kForm, class T>
__device__ Target<T> target_of(const Problem<T>& problem, const Tile& tile, int warp) {
  const int row = tile.row + warp * 16;
  const std::int64_t first =
      kForm == Form::kColumns ? static_cast<std::int64_t>(tile.expert) * problem.rows : tile.begin;
  return {problem.result + (first + row) * problem.stride + tile.column, problem.stride,
          (kForm == Form::kColumns ? problem.rows : tile.count) - row, problem.columns - tile.column};
}

// The old values, which are read after the products.
template <int kTileColumns>
__device__ void prefetch(const Target<float>& target) {
  constexpr int kLine = 128 / sizeof(float), kLines = kTileColumns / kLine;
  for (int i = lane_id(); i < 16 * kLines; i += kWarp)
    if (i / kLines < target.rows && i % kLines * kLine < target.columns)
      prefetch_to_l2(target.data + i / kLines * target.stride + i % kLines * kLine);
}

template <class S>
struct Ring {
  typename S::Shared& shared;
  Barrier *full, *empty;
};

template <Form kForm, int kTileColumns, class T>
__device__ void copy_tiles(const Problem<T>& problem, const CUtensorMap& left, const CUtensorMap& right,
                           const Ring<Shape<kForm, kTileColumns>>& ring) {
  using S = Shape<kForm, kTileColumns>;
  Turn<S::kStages> turn;
  Tiles<kForm, kTileColumns> tiles(problem);
  for (Tile tile; tiles.next(tile);)
    for (int depth = 0; depth < depth_of<kForm>(problem, tile); depth += kDepth, turn.advance()) {
      wait(ring.empty[turn.place], turn.parity ^ 1);
      copy_place<kForm, kTileColumns>(ring.shared.places[turn.place], left, right, tile, depth, ring.full[turn.place]);
    }
}

template <Form kForm, int kTileColumns, class T>
__device__ void multiply_tiles(const Problem<T>& problem, const Ring<Shape<kForm, kTileColumns>>& ring) {
  using S = Shape<kForm, kTileColumns>;
  const int thread = static_cast<int>(threadIdx.x) - kWarpgroup, warp = thread / kWarp;
  Turn<S::kStages> turn;
  Tiles<kForm, kTileColumns> tiles(problem);
  for (Tile tile; tiles.next(tile);) {
    const Target<T> target = target_of<kForm>(problem, tile, warp);
    if constexpr (sizeof(T) == sizeof(float))
      if (problem.add) prefetch<kTileColumns>(target);
    float sum[kTileColumns / 2] = {};
    int last = -1;  // place whose products are under way
    for (int left_over = depth_of<kForm>(problem, tile); left_over > 0; left_over -= kDepth, turn.advance()) {
      auto& place = ring.shared.places[turn.place];
      wait(ring.full[turn.place], turn.parity);
      if constexpr (kForm == Form::kColumns)
        if (left_over < kDepth) clear_rows(place, left_over, thread);
      const std::uint64_t left = S::Left::descriptor(place.left + thread / kWarpgroup * kBlockBytes),
                          right = S::Right::descriptor(place.right);
      begin_products();
#pragma unroll
      for (int k = 0; k < kDepth / 16; ++k)
        multiply<S::kLeftDepthMajor, S::kRightDepthMajor>(sum, left + k * S::Left::kStep, right + k * S::Right::kStep);
      end_products();
      wait_for_products<1>();
      if (last >= 0 && lane_id() == 0) arrive(ring.empty[last]);
      last = turn.place;
    }
    wait_for_products<0>();
    hold(sum);
    if (last >= 0 && lane_id() == 0) arrive(ring.empty[last]);
    write(sum, target, problem.add, ring.shared.chunks[warp]);
  }
}

template <Form kForm, int kTileColumns, class T>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_product(Problem<T> problem, const __grid_constant__ CUtensorMap left,
                    const __grid_constant__ CUtensorMap right) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using S = Shape<kForm, kTileColumns>;
  extern __shared__ unsigned char memory[];
  __shared__ Barrier full[S::kStages], empty[S::kStages];
  const Ring<S> ring = {
      *reinterpret_cast<typename S::Shared*>((reinterpret_cast<std::uintptr_t>(memory) + 1023) / 1024 * 1024), full,
      empty};
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      initialize(full[i], 1);
      initialize(empty[i], kMultipliers * kWarpgroup / kWarp);
    }
    publish_barriers();
    prefetch_descriptor(left);
    prefetch_descriptor(right);
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCopierRegisters));
    if (threadIdx.x == 0) copy_tiles<kForm, kTileColumns>(problem, left, right, ring);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kMultiplierRegisters));
    multiply_tiles<kForm, kTileColumns>(problem, ring);
  }
#endif
}

// [matrices][rows][columns], of which boxes of `box_rows` rows and 64 columns are copied.
struct Boxes {
  const bf16* data;
  std::int64_t columns, rows, matrices, stride;
  int box_rows;
};

CUtensorMap tensor_map(const Boxes& boxes) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(boxes.columns), static_cast<cuuint64_t>(boxes.rows),
                              static_cast<cuuint64_t>(boxes.matrices)};
  const cuuint64_t row_bytes = static_cast<cuuint64_t>(boxes.stride) * sizeof(bf16);
  const cuuint64_t strides[] = {row_bytes, row_bytes * sizes[1]};
  const cuuint32_t box[] = {kSwizzledRow, static_cast<cuuint32_t>(boxes.box_rows), 1}, steps[] = {1, 1, 1};
  CUtensorMap map;
  encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<bf16*>(boxes.data), sizes, strides, box, steps,
         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return map;
}

template <Form kForm, int kTileColumns, class T>
void launch(const Problem<T>& problem, Boxes left, Boxes right, cudaStream_t stream) {
  using S = Shape<kForm, kTileColumns>;
  left.box_rows = S::kLeftDepthMajor ? kTileRows : kDepth;
  right.box_rows = S::kRightDepthMajor ? kTileColumns : kDepth;
  const auto kernel = grouped_product<kForm, kTileColumns, T>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
  kernel<<<static_cast<unsigned>(multiprocessors()), kThreads, S::kSharedBytes, stream>>>(problem, tensor_map(left),
                                                                                          tensor_map(right));
}

#ifndef BRAID_TILE
#define BRAID_TILE 192
#endif
constexpr int kTileColumns = BRAID_TILE;

template <class T>
void multiply_columns(const ExpertEnds& experts, const Matrix<const bf16>& left, const Matrix<const bf16>& right,
                      T* result, bool add, cudaStream_t stream) {
  const Problem<T> problem = {
      experts, static_cast<int>(left.columns), static_cast<int>(right.columns), 0, result, right.columns, add};
  launch<Form::kColumns, kTileColumns>(problem, {left.data, left.columns, left.rows, 1, left.stride, 0},
                                       {right.data, right.columns, right.rows, 1, right.stride, 0}, stream);
}

}  // namespace

bool has_grouped_products() {
  int device = 0, major = 0, minor = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  if (major != 9 || minor != 0) return false;
  cudaFuncAttributes attributes = {};
  cudaFuncGetAttributes(&attributes, grouped_product<Form::kPlain, kTileColumns, bf16>);
  return attributes.sharedSizeBytes > 0;  // compiled for another target, the kernel is empty
}

void multiply_rows(const ExpertEnds& experts, const Matrix<const bf16>& rows, const bf16* matrices, bool transposed,
                   const Matrix<bf16>& result, cudaStream_t stream) {
  const Problem<bf16> problem = {
      experts, 0, static_cast<int>(result.columns), static_cast<int>(rows.columns), result.data, result.stride, false};
  const Boxes left = {rows.data, rows.columns, rows.rows, 1, rows.stride, 0};
  if (transposed)
    launch<Form::kTransposed, kTileColumns>(
        problem, left, {matrices, rows.columns, result.columns, experts.experts, rows.columns, 0}, stream);
  else
    launch<Form::kPlain, kTileColumns>(
        problem, left, {matrices, result.columns, rows.columns, experts.experts, result.columns, 0}, stream);
}

void multiply_columns(const ExpertEnds& experts, const Matrix<const bf16>& left, const Matrix<const bf16>& right,
                      bf16* result, cudaStream_t stream) {
  multiply_columns<bf16>(experts, left, right, result, false, stream);
}

void multiply_columns(const ExpertEnds& experts, const Matrix<const bf16>& left, const Matrix<const bf16>& right,
                      float* result, bool add, cudaStream_t stream) {
  multiply_columns<float>(experts, left, right, result, add, stream);
}

}  // namespace braid::kernels
