// A team of warps has a row at a time: its thread t has vectors t, t + threads, ..., at most 40 columns, and adds the
// gradients of the parameters of these columns over all rows of the team. Each thread copies its part of a later row to
// shared memory meanwhile, where only it reads it: this needs no barrier, and rows on their way need no registers.
#include <algorithm>

#include "kernels/column_sum.h"
#include "kernels/norm.h"
#include "kernels/tensor_core.cuh"
#include "kernels/vector_math.cuh"

namespace braid::kernels {
namespace {

constexpr int kColumnsPerThread = 40, kColumnsPerWarp = kColumnsPerThread * kWarp;
constexpr int kMostWarps = blocks_for(kWidestNorm, kColumnsPerWarp), kMostTeams = 4;
constexpr int kThreadsPerMultiprocessor = 256;

// How a launch divides its rows.
struct Teams {
  int warps = 1, count = 1;  // of a team; in a block
  int stages = 1;            // rows of a team that are in shared memory or on their way to it

  explicit Teams(std::int64_t columns)
      : warps(std::max(1, static_cast<int>(blocks_for(columns, kColumnsPerWarp)))),
        count(std::max(1, kMostTeams / warps)) {}
  int threads() const { return warps * count * kWarp; }
};

enum class Parameters { Weight, WeightAndBias, WeightAndBiases };  // the last: with that of the branch

template <Parameters kParameters>
constexpr int kCount = static_cast<int>(kParameters) + 1;

// One thread's share of a row, in shared memory.
template <class T, int kWidth>
struct SharedRow {
  T* data;
  int columns;

  // of 16-byte units
  __host__ __device__ static int elements(int columns) {
    return static_cast<int>(blocks_for(columns, kVectorWidth<T>)) * kVectorWidth<T>;
  }
  __device__ T* part(int matrix, int column) const { return data + matrix * elements(columns) + column; }
};

enum { kS, kGrad, kSumGrad };

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

// Over a team, in each of its threads; `scratch` has an element per warp, and is used again only after another call.
__device__ RowSums team_sum(RowSums x, RowSums* scratch, int team, int warps) {
  x = {warp_sum(x.along), warp_sum(x.total)};
  if (warps == 1) return x;
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp - team * warps] = x;
  asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(warps * kWarp) : "memory");
  x = {0, 0};
  for (int warp = 0; warp < warps; ++warp) x = {x.along + scratch[warp].along, x.total + scratch[warp].total};
  return x;
}

// With n the normalised row, g = grad * weight and means over columns:
//   gradient of s = inverse_root * (g - n * mean(g n) - mean(g)) + sum_grad, the third term in a layer norm only.
template <class T, int kWidth, Parameters kParameters>
__global__ void __launch_bounds__(std::max(kMostTeams, kMostWarps) * kWarp)
    backward(NormBackward<T> norm, Teams teams) {
  constexpr bool kCentred = kParameters != Parameters::Weight, kSumsResult = kParameters == Parameters::WeightAndBiases;
  constexpr int kParts = kColumnsPerThread / kWidth;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ RowSums scratch[2][kMostTeams][kMostWarps];
  const int columns = static_cast<int>(norm.s.columns), threads = teams.warps * kWarp;
  const int team = threadIdx.x / threads, thread = threadIdx.x % threads;
  const std::int64_t first = std::int64_t{blockIdx.x} * teams.count + team, step = std::int64_t{gridDim.x} * teams.count;
  using Row = SharedRow<T, kWidth>;
  T* const weights = reinterpret_cast<T*>(shared);
  const int row_elements = Row::elements(columns), matrices = norm.sum_grad.data ? 3 : 2;
  T* const ring = weights + row_elements * (1 + team * teams.stages * matrices);

  const auto for_own = [&](auto visit) { for_held<kWidth>(columns, thread, threads, visit); };
  for_own([&](int, int column) { Vector<T, kWidth>::load(norm.weight + column).store(weights + column); });
  __syncthreads();
  const auto copy = [&](std::int64_t row, const Row& to) {
    if (row < norm.s.rows)
      for_own([&](int, int column) {
        copy_vector<T, kWidth>(to.part(kS, column), norm.s.data + row * norm.s.stride + column);
        copy_vector<T, kWidth>(to.part(kGrad, column), norm.grad.data + row * norm.grad.stride + column);
        if (norm.sum_grad.data)
          copy_vector<T, kWidth>(to.part(kSumGrad, column), norm.sum_grad.data + row * norm.sum_grad.stride + column);
      });
    commit_copies();
  };
  const auto stage_of = [&](int stage) { return Row{ring + stage * matrices * row_elements, columns}; };
  const auto load_root = [&](std::int64_t row) { return row < norm.s.rows ? norm.inverse_root[row] : 0.f; };
  const auto load_mean = [&](std::int64_t row) { return kCentred && row < norm.s.rows ? norm.mean[row] : 0.f; };

  float sums[kCount<kParameters>][kParts][kWidth] = {};
  for (int stage = 0; stage < teams.stages; ++stage) copy(first + stage * step, stage_of(stage));
  float next_root = load_root(first), next_mean = load_mean(first);
  int stage = 0, turn = 0;
  for (std::int64_t row = first; row < norm.s.rows; row += step) {
    const float root = next_root, mean = next_mean;
    next_root = load_root(row + step), next_mean = load_mean(row + step);
    const Row held = stage_of(stage);
    wait_for_copies(teams.stages);
    RowSums own = {0, 0};
    for_own([&](int part, int column) {
      const auto s = Vector<T, kWidth>::load(held.part(kS, column));
      const auto grad = Vector<T, kWidth>::load(held.part(kGrad, column));
      const auto weight = Vector<T, kWidth>::load(weights + column);
      for (int i = 0; i < kWidth; ++i) {
        const float normed = (to_float(s.values[i]) - mean) * root, slope = to_float(grad.values[i]);
        const float scaled = slope * to_float(weight.values[i]);
        sums[0][part][i] += slope * normed;
        if constexpr (kCentred) sums[1][part][i] += slope;
        own.along += scaled * normed;
        if constexpr (kCentred) own.total += scaled;
      }
    });
    own = team_sum(own, scratch[turn][team], team, teams.warps);
    const float along = -own.along / columns * root * root, total = -own.total / columns * root;
    asm volatile("" ::: "memory");  // else the compiler keeps what it has read in registers, and has too few
    for_own([&](int part, int column) {
      const auto s = Vector<T, kWidth>::load(held.part(kS, column));
      const auto grad = Vector<T, kWidth>::load(held.part(kGrad, column));
      const auto weight = Vector<T, kWidth>::load(weights + column);
      Vector<T, kWidth> added;
      if (norm.sum_grad.data) added = Vector<T, kWidth>::load(held.part(kSumGrad, column));
      float result[kWidth];
      for (int i = 0; i < kWidth; ++i) {
        result[i] = to_float(grad.values[i]) * to_float(weight.values[i]) * root + (to_float(s.values[i]) - mean) * along;
        if constexpr (kCentred) result[i] += total;
        if (norm.sum_grad.data) result[i] += to_float(added.values[i]);
        if constexpr (kSumsResult) sums[2][part][i] += result[i];
      }
      pack<T>(result).store(norm.s_grad + row * columns + column);
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
  const auto columns = static_cast<int>(norm.s.columns);
  const std::size_t row_bytes = SharedRow<T, kWidth>::elements(columns) * sizeof(T);
  const auto bytes = [&](int stages) {
    const std::size_t rows = row_bytes * (1 + teams.count * stages * (norm.sum_grad.data ? 3 : 2));
    return std::max(rows, kCount<kParameters> * columns * sizeof(float));
  };
  int device = 0, most = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  constexpr std::size_t kStaticBytes = 2 * kMostTeams * kMostWarps * sizeof(RowSums);
  teams.stages = bytes(2) + kStaticBytes <= static_cast<std::size_t>(most) ? 2 : 1;
  const auto kernel = backward<T, kWidth, kParameters>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes(teams.stages)));
  kernel<<<blocks, teams.threads(), bytes(teams.stages), stream>>>(norm, teams);
}

}  // namespace

std::int64_t norm_partials(std::int64_t rows, std::int64_t columns) {
  const Teams teams(columns);
  const int per_multiprocessor = std::max(1, kThreadsPerMultiprocessor / teams.threads());
  return std::min<std::int64_t>(blocks_for(rows, teams.count), per_multiprocessor * multiprocessors());
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
