// Blocks stay on their multiprocessors and take every gridDim.x-th tile of the result, kTileRows x kTileColumns, of
// one expert after the other; the tiles of a row of tiles follow one another, because they read the same left operand.
// Of a block's four warpgroups the first copies both operands' parts of a tile, kDepth deep, to a ring of kStages
// places in shared memory; the other three multiply them, each 64 of the tile's rows, and write the result. A place is
// `full` when its copies have arrived, and `empty` when all three have read it. Square tiles read the fewest bytes per
// product; larger ones, of 256 x 192, were slower.
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

constexpr int kMultipliers = 3;  // warpgroups
constexpr int kMultiplierRows = 64;
constexpr int kTileRows = kMultipliers * kMultiplierRows, kTileColumns = 192, kDepth = 64, kStages = 4;
constexpr int kThreads = (1 + kMultipliers) * kWarpgroup;
inline constexpr int kCopierRegisters = 56, kMultiplierRegisters = 152;

// Parts of both operands, in blocks of kSwizzledRow x kDepth elements.
struct Place {
  using Block = bf16[kSwizzledRow * kDepth];
  Block left[kTileRows / kSwizzledRow], right[kTileColumns / kSwizzledRow];
};
constexpr int kSharedBytes = kStages * sizeof(Place) + 1024;  // the swizzle needs an alignment of 1024 bytes

struct Ring {
  Place* places;
  Barrier *full, *empty;
};

template <Form kForm>
struct Shape {
  static constexpr bool kLeftDepthMajor = kForm != Form::kColumns, kRightDepthMajor = kForm == Form::kTransposed;
  using Left = Operand<kLeftDepthMajor, kDepth>;
  using Right = Operand<kRightDepthMajor, kDepth>;
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
__device__ void copy_place(Place& to, const CUtensorMap& left, const CUtensorMap& right, const Part& tile, int depth,
                           Barrier& full) {
  using S = Shape<kForm>;
  arrive_with_copies(full, sizeof(to));
  const int first_row = kForm == Form::kColumns ? tile.begin : 0, matrix = kForm == Form::kColumns ? 0 : tile.expert;
  if constexpr (S::kLeftDepthMajor)
    copy_box(to.left, left, depth, tile.begin + tile.row, 0, full);
  else
    for (int i = 0; i < kTileRows / kSwizzledRow; ++i)
      copy_box(to.left[i], left, tile.row + i * kSwizzledRow, first_row + depth, 0, full);
  if constexpr (S::kRightDepthMajor)
    copy_box(to.right, right, depth, tile.column, matrix, full);
  else
    for (int i = 0; i < kTileColumns / kSwizzledRow; ++i)
      copy_box(to.right[i], right, tile.column + i * kSwizzledRow, first_row + depth, matrix, full);
}

template <Form kForm, class T>
__device__ void copy_tiles(const Problem<T>& problem, const CUtensorMap& left, const CUtensorMap& right,
                           const Ring& ring) {
  Turn turn;
  Tiles<kForm> tiles(problem);
  for (Part tile; tiles.next(tile);)
    for (int depth = 0; depth < depth_of<kForm>(problem, tile); depth += kDepth, turn.advance()) {
      wait(ring.empty[turn.place], turn.parity ^ 1);
      copy_place<kForm>(ring.places[turn.place], left, right, tile, depth, ring.full[turn.place]);
    }
}

// Rows of the next expert must not count. A multiplier clears all that it reads; others may write the same zeros.
__device__ inline void clear_rows(Place& place, int valid, int multiplier) {
  const auto clear = [&](Place::Block& block) {
    auto* const units = reinterpret_cast<uint4*>(block);
    constexpr int kUnits = sizeof(block) / sizeof(uint4), kUnitsOfRow = 128 / sizeof(uint4);
    for (int i = valid * kUnitsOfRow + threadIdx.x % kWarpgroup; i < kUnits; i += kWarpgroup) units[i] = uint4();
  };
  clear(place.left[multiplier]);
  for (Place::Block& block : place.right) clear(block);
  publish_stores();
  wait_for_threads(1 + multiplier, kWarpgroup);
}

// A thread's sums of a tile.
using Sums = float[kTileColumns / 2];

__device__ inline void clear(Sums& sum) {
#pragma unroll
  for (float& x : sum) x = 0;
}

template <Form kForm>
__device__ void multiply_tile(Sums& sum, const Ring& ring, Turn& turn, int depth, int multiplier) {
  using S = Shape<kForm>;
  int last = -1;  // place whose products are under way
  for (int left_over = depth; left_over > 0; left_over -= kDepth, turn.advance()) {
    Place& place = ring.places[turn.place];
    wait(ring.full[turn.place], turn.parity);
    if constexpr (kForm == Form::kColumns)
      if (left_over < kDepth) clear_rows(place, left_over, multiplier);
    const std::uint64_t left = S::Left::descriptor(place.left[multiplier]), right = S::Right::descriptor(place.right);
    begin_products();
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k)
      multiply<S::kLeftDepthMajor, S::kRightDepthMajor>(sum, left + k * S::Left::kStep, right + k * S::Right::kStep,
                                                        /*add=*/k > 0 || last >= 0);
    end_products();
    wait_for_products<1>();
    if (last >= 0 && lane_id() == 0) arrive(ring.empty[last]);
    last = turn.place;
  }
  wait_for_products<0>();
  hold(sum);
  if (last >= 0 && lane_id() == 0) arrive(ring.empty[last]);
}

// For a multiplier whose part of the tile has no rows.
__device__ inline void skip_tile(const Ring& ring, Turn& turn, int depth) {
  for (int left_over = depth; left_over > 0; left_over -= kDepth, turn.advance()) {
    wait(ring.full[turn.place], turn.parity);
    __syncwarp();
    if (lane_id() == 0) arrive(ring.empty[turn.place]);
  }
}

// A multiplier's part of a tile, and how many of its rows and columns exist.
template <class T>
struct Target {
  T* data;
  std::int64_t stride;
  int rows, columns;
};

template <Form kForm, class T>
__device__ Target<T> target_of(const Problem<T>& problem, const Part& tile, int multiplier) {
  const int row = tile.row + multiplier * kMultiplierRows;
  const std::int64_t first =
      kForm == Form::kColumns ? static_cast<std::int64_t>(tile.expert) * problem.rows : tile.begin;
  return {problem.result + (first + row) * problem.stride + tile.column, problem.stride,
          (kForm == Form::kColumns ? problem.rows : tile.count) - row, problem.columns - tile.column};
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

// Of each 8 columns of a row, four lanes have 2 each. They exchange them, so that each lane writes 16 bytes.
__device__ inline void write(const Sums& sum, const Target<bf16>& to, bool) {
#pragma unroll
  for (int first = 0; first < kTileColumns; first += 32) {
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

__device__ inline void write(const Sums& sum, const Target<float>& to, bool add) {
#pragma unroll
  for (int first = 0; first < kTileColumns; first += 16) {
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

template <Form kForm, class T>
__device__ void multiply_tiles(const Problem<T>& problem, const Ring& ring) {
  const int multiplier = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
  Turn turn;
  Tiles<kForm> tiles(problem);
  for (Part tile; tiles.next(tile);) {
    const int depth = depth_of<kForm>(problem, tile);
    const Target<T> target = target_of<kForm>(problem, tile, multiplier);
    if (target.rows <= 0) {
      skip_tile(ring, turn, depth);
      continue;
    }
    Sums sum;
    if (depth == 0) clear(sum);
    multiply_tile<kForm>(sum, ring, turn, depth, multiplier);
    write(sum, target, problem.add);
  }
}

template <Form kForm, class T>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_product(Problem<T> problem, const __grid_constant__ CUtensorMap left,
                    const __grid_constant__ CUtensorMap right) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char memory[];
  __shared__ Barrier full[kStages], empty[kStages];
  const Ring ring = {reinterpret_cast<Place*>((reinterpret_cast<std::uintptr_t>(memory) + 1023) / 1024 * 1024), full,
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
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  kernel<<<static_cast<unsigned>(multiprocessors()), kThreads, kSharedBytes, stream>>>(problem, left_map, right_map);
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
