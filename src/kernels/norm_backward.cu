// A team of warps has a row at a time, each thread at most 8 columns of it: vectors t, t + threads, ... The thread adds
// the gradients of these columns' parameters over all rows of its team. It copies its part of a later row to shared
// memory meanwhile, where only it reads it: this needs no barrier, and rows on their way need no registers.
#include <algorithm>

#include "kernels/column_sum.h"
#include "kernels/norm.h"
#include "kernels/tensor_core.cuh"
#include "kernels/vector_math.cuh"

namespace braid::kernels {
namespace {

constexpr int kColumnsPerThread = 8, kColumnsPerWarp = kColumnsPerThread * kWarp;
constexpr int kMostWarps = kWidestNorm / kColumnsPerWarp, kMostTeams = 8;
constexpr int kFewWarps = 20;  // in a block that has registers for all sums

// How a launch divides its rows.
struct Teams {
  int warps = 1, count = 1;  // of a team; in a block
  int stages = 2;            // rows of a team that are in shared memory or on their way to it

  explicit Teams(std::int64_t columns)
      : warps(std::max(1, static_cast<int>(blocks_for(columns, kColumnsPerWarp)))),
        count(std::clamp((are_few() ? kFewWarps : kMostWarps) / warps, 1, kMostTeams)) {}
  // If two teams fit, one of which computes while the other waits.
  bool are_few() const { return 2 * warps <= kFewWarps; }
  int threads() const { return warps * count * kWarp; }
};

enum class Parameters { Weight, WeightAndBias, WeightAndBiases };  // the last: with that of the branch

template <Parameters kParameters>
constexpr int kCount = static_cast<int>(kParameters) + 1;

enum { kS, kGrad, kSumGrad };  // matrices of which a team copies rows

// Elements of a row in shared memory, a whole number of 16-byte units.
template <class T>
__host__ __device__ int shared_elements(std::int64_t columns) {
  return static_cast<int>(blocks_for(columns, kVectorWidth<T>)) * kVectorWidth<T>;
}

// Calls visit(part, column) for each vector of this thread.
template <int kWidth, class Visit>
__device__ void for_held(int columns, int thread, int threads, Visit visit) {
#pragma unroll
  for (int part = 0; part < kColumnsPerThread / kWidth; ++part) {
    const int column = (part * threads + thread) * kWidth;
    if (column < columns) visit(part, column);
  }
}

template <class T, int kWidth>
__device__ void copy_vector(T* to, const T* from) {
  if constexpr (kWidth * sizeof(T) == 16)
    copy_async(to, from);
  else
    *to = *from;
}

__device__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All but the last `stages - 1` groups of copies.
__device__ void wait_for_copies(int stages) {
  if (stages > 1)
    asm volatile("cp.async.wait_group 1;" ::: "memory");
  else
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

// Sums over the columns of a row.
struct RowSums {
  float along, total;
};

// Over a team, in each of its threads. `scratch` has an element per warp of the team, and is used again only after
// another call.
__device__ RowSums team_sum(RowSums x, RowSums* scratch, int team, int warps) {
  const int lane = threadIdx.x % kWarp, half = lane / (kWarp / 2);
  float own = half == 0 ? x.along : x.total;  // half a warp adds the one, the other half the other
  own += __shfl_xor_sync(~0u, half == 0 ? x.total : x.along, kWarp / 2);
  for (int step = kWarp / 4; step > 0; step /= 2) own += __shfl_xor_sync(~0u, own, step);
  if (warps == 1) return {__shfl_sync(~0u, own, 0), __shfl_sync(~0u, own, kWarp / 2)};
  if (lane % (kWarp / 2) == 0) (&scratch[threadIdx.x / kWarp - team * warps].along)[half] = own;
  asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(warps * kWarp) : "memory");
  x = {0, 0};
  for (int warp = 0; warp < warps; ++warp) x = {x.along + scratch[warp].along, x.total + scratch[warp].total};
  return x;
}

// With n the normalised row, g = grad * weight and means over columns:
//   gradient of s = inverse_root * (g - n * mean(g n) - mean(g)) + sum_grad, the third term in a layer norm only.
template <class T, int kWidth, Parameters kParameters, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp) backward(NormBackward<T> norm, Teams teams) {
  wait_for_previous();
  constexpr bool kCentred = kParameters != Parameters::Weight, kSumsResult = kParameters == Parameters::WeightAndBiases;
  constexpr int kParts = kColumnsPerThread / kWidth;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ RowSums scratch[2][kMostWarps];
  const int columns = static_cast<int>(norm.s.columns), threads = teams.warps * kWarp;
  const int team = threadIdx.x / threads, thread = threadIdx.x % threads;
  const int rows = static_cast<int>(norm.s.rows), first = blockIdx.x * teams.count + team,
            step = gridDim.x * teams.count;
  const int row_elements = shared_elements<T>(columns), matrices = norm.sum_grad.data ? 3 : 2;
  const auto stage_of = [&](int stage) {
    return reinterpret_cast<T*>(shared) + (team * teams.stages + stage) * matrices * row_elements;
  };
  const auto for_own = [&](auto visit) { for_held<kWidth>(columns, thread, threads, visit); };
  const auto copy = [&](int row, T* to) {
    if (row < rows)
      for_own([&](int, int column) {
        const auto copy_of = [&](int place, const Matrix<const T>& x) {
          copy_vector<T, kWidth>(to + place * row_elements + column, x.data + row * x.stride + column);
        };
        copy_of(kS, norm.s), copy_of(kGrad, norm.grad);
        if (norm.sum_grad.data) copy_of(kSumGrad, norm.sum_grad);
      });
    commit_copies();
  };
  const auto load_root = [&](int row) { return row < rows ? norm.inverse_root[row] : 0.f; };
  const auto load_mean = [&](int row) { return kCentred && row < rows ? norm.mean[row] : 0.f; };

  for (int stage = 0; stage < teams.stages; ++stage) copy(first + stage * step, stage_of(stage));
  float next_root = load_root(first), next_mean = load_mean(first);
  Vector<T, kWidth> weight[kParts];
  for_own([&](int part, int column) { weight[part] = Vector<T, kWidth>::load(norm.weight + column); });
  const float share = 1.f / static_cast<float>(columns);
  float sums[kCount<kParameters>][kParts][kWidth] = {};
  int stage = 0, turn = 0;
  for (int row = first; row < rows; row += step) {
    const float root = next_root, mean = next_mean;
    next_root = load_root(row + step), next_mean = load_mean(row + step);
    T* const held = stage_of(stage);
    wait_for_copies(teams.stages);
    float normed[kParts][kWidth], scaled[kParts][kWidth];
    RowSums own = {0, 0};
    for_own([&](int part, int column) {
      const auto s = Vector<T, kWidth>::load(held + column),
                 grad = Vector<T, kWidth>::load(held + row_elements + column);
      for (int i = 0; i < kWidth; ++i) {
        const float slope = to_float(grad.values[i]);
        normed[part][i] = (to_float(s.values[i]) - mean) * root;
        scaled[part][i] = slope * to_float(weight[part].values[i]);
        sums[0][part][i] += slope * normed[part][i];
        if constexpr (kCentred) sums[1][part][i] += slope;
        own.along += scaled[part][i] * normed[part][i];
        if constexpr (kCentred) own.total += scaled[part][i];
      }
    });
    own = team_sum(own, scratch[turn] + team * teams.warps, team, teams.warps);
    const float along = -own.along * share * root, total = -own.total * share * root;
    for_own([&](int part, int column) {
      float result[kWidth];
      for (int i = 0; i < kWidth; ++i) {
        result[i] = scaled[part][i] * root + normed[part][i] * along;
        if constexpr (kCentred) result[i] += total;
      }
      if (norm.sum_grad.data) {
        const auto added = Vector<T, kWidth>::load(held + kSumGrad * row_elements + column);
        for (int i = 0; i < kWidth; ++i) result[i] += to_float(added.values[i]);
      }
      if constexpr (kSumsResult)
        for (int i = 0; i < kWidth; ++i) sums[2][part][i] += result[i];
      pack<T>(result).store(norm.s_grad + std::int64_t{row} * columns + column);
    });
    copy(row + teams.stages * step, held);
    if (++stage == teams.stages) stage = 0;
    turn ^= 1;
  }

  // The sums of the block's teams, added in their order.
  float* const added = reinterpret_cast<float*>(shared);
  float* const partials = norm.partials + std::int64_t{blockIdx.x} * kCount<kParameters> * columns;
  for (int adding = 0; adding < teams.count; ++adding) {
    __syncthreads();
    if (adding != team) continue;
    float* const to = adding + 1 == teams.count ? partials : added;
#pragma unroll
    for (int kind = 0; kind < kCount<kParameters>; ++kind)
      for_own([&](int part, int column) {
        for (int i = 0; i < kWidth; ++i) {
          const int place = kind * columns + column + i;
          to[place] = sums[kind][part][i] + (adding > 0 ? added[place] : 0.f);
        }
      });
  }
}

template <class T, int kWidth, Parameters kParameters>
void launch(const NormBackward<T>& norm, std::int64_t blocks, cudaStream_t stream) {
  Teams teams(norm.s.columns);
  const auto bytes = [&] {
    const int rows = teams.count * teams.stages * (norm.sum_grad.data ? 3 : 2);
    return std::max(rows * shared_elements<T>(norm.s.columns) * sizeof(T),
                    kCount<kParameters> * norm.s.columns * sizeof(float));
  };
  int device = 0, most = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  constexpr std::size_t kStaticBytes = 2 * kMostWarps * sizeof(RowSums);
  if (bytes() + kStaticBytes > static_cast<std::size_t>(most)) teams.stages = 1;
  const auto kernel =
      teams.are_few() ? backward<T, kWidth, kParameters, kFewWarps> : backward<T, kWidth, kParameters, kMostWarps>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes()));
  launch_kernel(kernel, {blocks, teams.threads(), bytes(), stream}, norm, teams);
}

}  // namespace

// One block per multiprocessor: its teams keep enough rows on their way.
std::int64_t norm_partials(std::int64_t rows, std::int64_t columns) {
  return std::min<std::int64_t>(blocks_for(rows, Teams(columns).count), multiprocessors());
}

template <class T>
void norm_backward(const NormBackward<T>& norm, cudaStream_t stream) {
  const auto& s = norm.s;
  const std::int64_t blocks = norm_partials(s.rows, s.columns);
  const bool aligned =
      is_aligned(s) && is_aligned(norm.grad) && is_aligned(norm.sum_grad) && is_aligned(norm.weight, 0);
  if (blocks > 0 && s.columns > 0)
    with_vector_width<T>(aligned, s.columns, [&](auto width) {
      if (norm.sums_s_grad)
        launch<T, width(), Parameters::WeightAndBiases>(norm, blocks, stream);
      else if (norm.mean)
        launch<T, width(), Parameters::WeightAndBias>(norm, blocks, stream);
      else
        launch<T, width(), Parameters::Weight>(norm, blocks, stream);
    });
  const std::int64_t parameters = (norm.mean ? norm.sums_s_grad ? 3 : 2 : 1) * s.columns;
  add_partials({norm.partials, blocks, parameters, parameters}, norm.parameter_grads, stream);
}

template void norm_backward(const NormBackward<float>&, cudaStream_t);
template void norm_backward(const NormBackward<__nv_bfloat16>&, cudaStream_t);

}  // namespace braid::kernels
