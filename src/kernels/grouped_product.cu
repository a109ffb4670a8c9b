// Blocks stay on their multiprocessors and take every gridDim.x-th tile of the result, kTileRows x kTileColumns, of
// one expert after the other; the tiles of a row of tiles follow one another, because they read the same left operand.
// Of a block's three warpgroups the first copies both operands' parts of a tile, kDepth deep, to a ring of kStages
// places in shared memory; the other two multiply them, each half of the tile's rows, and write the result. A place is
// `full` when its copies have arrived, and `empty` when both have read it.
#include <stdexcept>
#include <string>

#include "kernels/grouped_product.h"
#include "kernels/hopper.cuh"

namespace braid::kernels {
namespace grouped {  // with a name, because what targets other than sm_90a do not use is then no warning

enum class Form {
  kTransposed,  // rows times matrices^T: the depth of both operands is contiguous
  kPlain,       // rows times matrices: that of the right one is not
  kColumns      // columns times columns: the depth is the rows of an expert
};

constexpr int kTileRows = 128, kTileColumns = 192, kDepth = 64, kStages = 5;
constexpr int kMultipliers = 2;  // warpgroups
constexpr int kThreads = (1 + kMultipliers) * kWarpgroup;
constexpr int kBlockBytes = kSwizzledRow * kDepth * sizeof(bf16);
inline constexpr int kCopierRegisters = 40, kMultiplierRegisters = 232;
constexpr int kChunk = 64;  // columns of bf16 that a warp writes at a time

template <Form kForm>
struct Shape {
  static constexpr bool kLeftDepthMajor = kForm != Form::kColumns, kRightDepthMajor = kForm == Form::kTransposed;
  static constexpr int kLeftBlocks = kTileRows / 64, kRightBlocks = kTileColumns / 64;
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

// A tile of the result.
struct Part {
  int expert, row, column;  // the row is counted from the expert's first
  int begin, count;         // rows of the expert
};

// Finds one tile of the result after the other.
template <Form kForm>
class Tiles {
 public:
  template <class T>
  __device__ explicit Tiles(const Problem<T>& problem)
      : experts_(problem.experts),
        rows_(problem.rows),
        across_((problem.columns + kTileColumns - 1) / kTileColumns),
        next_(static_cast<int>(blockIdx.x)),
        end_(experts_.ends[0]) {}

  __device__ bool next(Part& tile) {
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
__device__ int depth_of(const Problem<T>& problem, const Part& tile) {
  return kForm == Form::kColumns ? tile.count : problem.depth;
}

template <Form kForm>
__device__ void copy_place(typename Shape<kForm>::Place& to, const CUtensorMap& left, const CUtensorMap& right,
                           const Part& tile, int depth, Barrier& full) {
  using S = Shape<kForm>;
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

// A thread's sums of a tile; what it adds them to, if it does.
using Sums = float[kTileColumns / 2];
using Old = float4[kTileColumns / 8];

// The result leaves by way of a buffer of 16 rows of 128 bytes per warp, so that a warp writes whole lines.
__device__ inline void write(const Sums& sum, const Old&, const Target<bf16>& to, bf16* buffer) {
  const Tile<kChunk> chunk = {buffer};
  const int lane = lane_id(), row = lane % 16, unit = lane / 16;
#pragma unroll
  for (int first = 0; first < kTileColumns; first += kChunk) {
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
      const int r = i + lane / 8, column = first + lane % 8 * 8;
      const uint4 values = *reinterpret_cast<const uint4*>(chunk.unit(r, lane % 8));
      if (r < to.rows && column < to.columns) *reinterpret_cast<uint4*>(to.data + r * to.stride + column) = values;
    }
    __syncwarp();
  }
}

constexpr int kFloatChunk = kChunk / 2;

__device__ inline void load(Old& old, const Target<float>& from) {
#pragma unroll
  for (int i = 0; i < kTileColumns / 8; ++i) {
    const int row = i % 4 * 4 + lane_id() / 8, column = i / 4 * kFloatChunk + lane_id() % 8 * 4;
    if (row < from.rows && column < from.columns)
      old[i] = *reinterpret_cast<const float4*>(from.data + row * from.stride + column);
  }
}

__device__ inline void write(const Sums& sum, const Old& old, const Target<float>& to, bf16* buffer) {
  const int lane = lane_id();
  // Permuted so that half a warp, which writes 4 rows of 32 bytes, meets no bank twice.
  const auto unit = [&](int row, int unit) {
    return reinterpret_cast<float4*>(buffer) + row * 8 + (unit ^ row % 4 * 2);
  };
#pragma unroll
  for (int first = 0; first < kTileColumns; first += kFloatChunk) {
    if (first >= to.columns) return;
#pragma unroll
    for (int i = 0; i < kFloatChunk / 8 * 2; ++i) {
      const int at = (first / 8 + i / 2) * 4 + i % 2 * 2, row = i % 2 * 8 + lane / 4;
      reinterpret_cast<float2*>(unit(row, i / 2 * 2 + lane % 4 / 2))[lane % 2] = {sum[at], sum[at + 1]};
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = i * 4 + lane / 8, column = first + lane % 8 * 4;
      const float4 a = *unit(row, lane % 8), b = old[first / kFloatChunk * 4 + i];
      if (row < to.rows && column < to.columns)
        *reinterpret_cast<float4*>(to.data + row * to.stride + column) = {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
    }
    __syncwarp();
  }
}

// The part of a tile that a warp writes; `warp` counts those of the multipliers.
template <Form kForm, class T>
__device__ Target<T> target_of(const Problem<T>& problem, const Part& tile, int warp) {
  const int row = tile.row + warp * 16;
  const std::int64_t first =
      kForm == Form::kColumns ? static_cast<std::int64_t>(tile.expert) * problem.rows : tile.begin;
  return {problem.result + (first + row) * problem.stride + tile.column, problem.stride,
          (kForm == Form::kColumns ? problem.rows : tile.count) - row, problem.columns - tile.column};
}

// The old values, which are read after the products.
__device__ inline void prefetch(const Target<float>& target) {
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

template <Form kForm, class T>
__device__ void copy_tiles(const Problem<T>& problem, const CUtensorMap& left, const CUtensorMap& right,
                           const Ring<Shape<kForm>>& ring) {
  using S = Shape<kForm>;
  Turn turn;
  Tiles<kForm> tiles(problem);
  for (Part tile; tiles.next(tile);)
    for (int depth = 0; depth < depth_of<kForm>(problem, tile); depth += kDepth, turn.advance()) {
      wait(ring.empty[turn.place], turn.parity ^ 1);
      copy_place<kForm>(ring.shared.places[turn.place], left, right, tile, depth, ring.full[turn.place]);
    }
}

template <Form kForm, class T>
__device__ void multiply_tiles(const Problem<T>& problem, const Ring<Shape<kForm>>& ring) {
  using S = Shape<kForm>;
  const int thread = static_cast<int>(threadIdx.x) - kWarpgroup, warp = thread / kWarp;
  Turn turn;
  Tiles<kForm> tiles(problem);
  for (Part tile; tiles.next(tile);) {
    const Target<T> target = target_of<kForm>(problem, tile, warp);
    if constexpr (sizeof(T) == sizeof(float))
      if (problem.add) prefetch(target);
    Sums sum = {};
    Old old = {};
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
    if constexpr (sizeof(T) == sizeof(float))
      if (problem.add) load(old, target);
    wait_for_products<0>();
    hold(sum);
    if (last >= 0 && lane_id() == 0) arrive(ring.empty[last]);
    write(sum, old, target, ring.shared.chunks[warp]);
  }
}

template <Form kForm, class T>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_product(Problem<T> problem, const __grid_constant__ CUtensorMap left,
                    const __grid_constant__ CUtensorMap right) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using S = Shape<kForm>;
  extern __shared__ unsigned char memory[];
  __shared__ Barrier full[kStages], empty[kStages];
  const Ring<S> ring = {
      *reinterpret_cast<typename S::Shared*>((reinterpret_cast<std::uintptr_t>(memory) + 1023) / 1024 * 1024), full,
      empty};
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
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
    if (threadIdx.x == 0) copy_tiles<kForm>(problem, left, right, ring);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kMultiplierRegisters));
    multiply_tiles<kForm>(problem, ring);
  }
#endif
}

}  // namespace grouped

namespace {

using namespace grouped;

// [matrices][rows][columns]
struct Matrices {
  const bf16* data;
  std::int64_t columns, rows, count, stride;
};

// Its boxes have `box_rows` rows of 128 bytes.
CUtensorMap tensor_map(const Matrices& x, int box_rows) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(x.columns), static_cast<cuuint64_t>(x.rows),
                              static_cast<cuuint64_t>(x.count)};
  const cuuint64_t row_bytes = static_cast<cuuint64_t>(x.stride) * sizeof(bf16);
  const cuuint64_t strides[] = {row_bytes, row_bytes * sizes[1]};
  const cuuint32_t box[] = {kSwizzledRow, static_cast<cuuint32_t>(box_rows), 1}, steps[] = {1, 1, 1};
  CUtensorMap map;
  const CUresult outcome = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<bf16*>(x.data), sizes, strides,
                                  box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (outcome != CUDA_SUCCESS)
    throw std::logic_error("the GPU's copy engine refuses the matrices of a grouped product, error " +
                           std::to_string(outcome));
  return map;
}

template <Form kForm, class T>
void launch(const Problem<T>& problem, const Matrices& left, const Matrices& right, cudaStream_t stream) {
  using S = Shape<kForm>;
  const CUtensorMap left_map = tensor_map(left, S::kLeftDepthMajor ? kTileRows : kDepth),
                    right_map = tensor_map(right, S::kRightDepthMajor ? kTileColumns : kDepth);
  const auto kernel = grouped_product<kForm, T>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
  kernel<<<static_cast<unsigned>(multiprocessors()), kThreads, S::kSharedBytes, stream>>>(problem, left_map, right_map);
}

}  // namespace

bool has_grouped_products() {
  int device = 0, major = 0, minor = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  if (major != 9 || minor != 0) return false;
  cudaFuncAttributes attributes = {};
  cudaFuncGetAttributes(&attributes, grouped_product<Form::kPlain, bf16>);
  return attributes.sharedSizeBytes > 0;  // compiled for another target, the kernel is empty
}

void multiply_rows(const ExpertEnds& experts, const Matrix<const bf16>& rows, const bf16* matrices, bool transposed,
                   const Matrix<bf16>& result, cudaStream_t stream) {
  const Problem<bf16> problem = {
      experts, 0, static_cast<int>(result.columns), static_cast<int>(rows.columns), result.data, result.stride, false};
  const Matrices left = {rows.data, rows.columns, rows.rows, 1, rows.stride};
  if (transposed)
    launch<Form::kTransposed>(problem, left, {matrices, rows.columns, result.columns, experts.experts, rows.columns},
                              stream);
  else
    launch<Form::kPlain>(problem, left, {matrices, result.columns, rows.columns, experts.experts, result.columns},
                         stream);
}

template <class T>
void multiply_columns(const ExpertEnds& experts, const Matrix<const bf16>& left, const Matrix<const bf16>& right,
                      T* result, bool overwrite, cudaStream_t stream) {
  const Problem<T> problem = {
      experts, static_cast<int>(left.columns), static_cast<int>(right.columns), 0, result, right.columns, !overwrite};
  launch<Form::kColumns>(problem, {left.data, left.columns, left.rows, 1, left.stride},
                         {right.data, right.columns, right.rows, 1, right.stride}, stream);
}
template void multiply_columns(const ExpertEnds&, const Matrix<const bf16>&, const Matrix<const bf16>&, bf16*, bool,
                               cudaStream_t);
template void multiply_columns(const ExpertEnds&, const Matrix<const bf16>&, const Matrix<const bf16>&, float*, bool,
                               cudaStream_t);

}  // namespace braid::kernels
