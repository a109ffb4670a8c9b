// Norms of rows and sums over rows.
#include <algorithm>
#include <cuda_pipeline.h>
#include "kernels/device.cuh"
#include "kernels/rows.h"
#include "kernels/tensor_core.cuh"

namespace braid::kernels {
namespace {

constexpr int kAddWarps = 32, kSumWarps = 16, kSumThreads = kSumWarps * kWarp, kRowVectors = 8;
constexpr int kSumBlocks = 2;  // per multiprocessor

// A block adds 32 columns: warp w adds rows w, w + 32, ..., and the first warp adds the warps' sums. It
// loads 5 x 32 rows before it adds them: all partial sums of a GPU with up to 160 multiprocessors.
template <class T>
__global__ void __launch_bounds__(kAddWarps* kWarp) add_rows(Matrix<const float> x, T* sums) {
  constexpr int kRowsAtOnce = 5;
  wait_for_previous();
  __shared__ float scratch[kAddWarps][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const std::int64_t column = std::int64_t{blockIdx.x} * kWarp + lane;
  float sum = 0;
  for (std::int64_t first = warp; first < x.rows; first += kRowsAtOnce * kAddWarps) {
    float values[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const std::int64_t row = first + i * kAddWarps;
      values[i] = row < x.rows && column < x.columns ? x.data[row * x.stride + column] : 0.f;
    }
    for (const float value : values) sum += value;
  }
  scratch[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column >= x.columns) return;
  for (int other = 1; other < kAddWarps; ++other) sum += scratch[other][lane];
  sums[column] = from_float<T>(sum);
}

// A block sums 8 vectors of columns over part blockIdx.y of the rows: 8 lanes have a row, each of them one vector. Many
// rows on their way at once make up for their short pieces. The sums of all rows are final.
template <int kWidth, class T>
__global__ void __launch_bounds__(kSumThreads, kSumBlocks) sum_rows(Matrix<const T> x, float* partials, T* sums) {
  wait_for_previous();
  constexpr int kRowsAtOnce = 4, kStep = kSumThreads / kRowVectors;
  __shared__ float scratch[kSumWarps][kRowVectors][kWidth];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, vector = lane % kRowVectors;
  const std::int64_t column = (std::int64_t{blockIdx.x} * kRowVectors + vector) * kWidth;
  const std::int64_t begin = x.rows * blockIdx.y / gridDim.y, end = x.rows * (blockIdx.y + 1) / gridDim.y;
  const bool inside = column < x.columns;
  float own[kWidth] = {};
  const auto load = [&](std::int64_t row) { return Vector<T, kWidth>::load(x.data + row * x.stride + column); };
  const auto add = [&](const Vector<T, kWidth>& values) {
    for (int i = 0; i < kWidth; ++i) own[i] += to_float(values.values[i]);
  };
  if (inside) {
    std::int64_t row = begin + threadIdx.x / kRowVectors;
    for (; row + (kRowsAtOnce - 1) * kStep < end; row += kRowsAtOnce * kStep) {
      Vector<T, kWidth> rows[kRowsAtOnce];
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) rows[i] = load(row + i * kStep);
#pragma unroll
      for (const auto& values : rows) add(values);
    }
    for (; row < end; row += kStep) add(load(row));
  }
  for (int i = 0; i < kWidth; ++i) {
    for (int other = kRowVectors; other < kWarp; other *= 2) own[i] += __shfl_xor_sync(~0u, own[i], other);
    if (lane < kRowVectors) scratch[warp][vector][i] = own[i];
  }
  __syncthreads();
  for (int i = warp; i < kRowVectors * kWidth; i += kSumWarps) {  // a warp adds the sums of all for one column
    const float sum = warp_sum(lane < kSumWarps ? scratch[lane][i / kWidth][i % kWidth] : 0.f);
    const std::int64_t to = std::int64_t{blockIdx.x} * kRowVectors * kWidth + i;
    if (lane > 0 || to >= x.columns) continue;
    if (gridDim.y == 1)
      sums[to] = from_float<T>(sum);
    else
      partials[blockIdx.y * x.columns + to] = sum;
  }
}

// The sums over all rows of partial sums, which are dense.
template <class T>
void add_partials(const Matrix<const float>& partials, T* sums, const Queue& queue) {
  launch_kernel(add_rows<T>, {blocks_for(partials.columns, kWarp), kAddWarps * kWarp, 0, queue}, partials, sums);
}

constexpr int kColumnsPerThread = 8;

// A block has a row at a time and holds it in registers: thread t has vectors t, t + blockDim.x, ..., at most 8
// columns. Sums over a row pass through shared memory.
namespace whole_rows {

constexpr int kMostThreads = kWidestNorm / kColumnsPerThread;

template <class T>
struct NormForward {
  Matrix<const T> x, branch;
  const T *branch_bias, *weight, *bias;
  float eps;
  T *sum, *y;
  float *mean, *inverse_root;
};

template <class T, int kWidth>
using Held = Vector<T, kWidth>[kColumnsPerThread / kWidth];

// Calls visit(part, column) for each vector of this thread.
template <int kWidth, class Visit>
__device__ void for_held(std::int64_t columns, Visit visit) {
#pragma unroll
  for (int part = 0; part < kColumnsPerThread / kWidth; ++part) {
    const int column = (part * blockDim.x + threadIdx.x) * kWidth;
    if (column < columns) visit(part, column);
  }
}

template <class T, int kWidth>
__device__ void load_row(Held<T, kWidth>& held, const Matrix<const T>& x, std::int64_t row) {
  for_held<kWidth>(
      x.columns, [&](int part, int column) { held[part] = Vector<T, kWidth>::load(x.data + row * x.stride + column); });
}

template <class T, int kWidth, bool kCentred>
__global__ void __launch_bounds__(kMostThreads) forward(NormForward<T> norm) {
  wait_for_previous();
  __shared__ float scratch[2][kMostThreads / kWarp];
  const std::int64_t row = blockIdx.x, columns = norm.x.columns;
  Held<T, kWidth> s, added;
  load_row<T, kWidth>(s, norm.x, row);
  if (norm.branch.data) {
    load_row<T, kWidth>(added, norm.branch, row);
    for_held<kWidth>(columns, [&](int part, int column) {
      float sums[kWidth];
      for (int i = 0; i < kWidth; ++i) sums[i] = to_float(s[part].values[i]) + to_float(added[part].values[i]);
      if (norm.branch_bias) {
        const auto bias = Vector<T, kWidth>::load(norm.branch_bias + column);
        for (int i = 0; i < kWidth; ++i) sums[i] += to_float(bias.values[i]);
      }
      for (int i = 0; i < kWidth; ++i) s[part].values[i] = from_float<T>(sums[i]);
      s[part].store(norm.sum + row * columns + column);
    });
  }
  float mean = 0, squares = 0;
  if constexpr (kCentred) {
    for_held<kWidth>(columns, [&](int part, int) {
      for (int i = 0; i < kWidth; ++i) mean += to_float(s[part].values[i]);
    });
    mean = block_sum(mean, scratch[0]) / columns;
  }
  for_held<kWidth>(columns, [&](int part, int) {
    for (int i = 0; i < kWidth; ++i) {
      const float value = to_float(s[part].values[i]) - mean;
      squares += value * value;
    }
  });
  const float inverse_root = rsqrtf(block_sum(squares, scratch[1]) / columns + norm.eps);
  for_held<kWidth>(columns, [&](int part, int column) {
    const auto weight = Vector<T, kWidth>::load(norm.weight + column);
    Vector<T, kWidth> bias;
    if constexpr (kCentred) bias = Vector<T, kWidth>::load(norm.bias + column);
    for (int i = 0; i < kWidth; ++i) {
      float y = (to_float(s[part].values[i]) - mean) * inverse_root * to_float(weight.values[i]);
      if constexpr (kCentred) y += to_float(bias.values[i]);
      s[part].values[i] = from_float<T>(y);
    }
    s[part].store(norm.y + row * columns + column);
  });
  if (threadIdx.x == 0) {
    norm.inverse_root[row] = inverse_root;
    if constexpr (kCentred) norm.mean[row] = mean;
  }
}

int threads_for(std::int64_t columns) {
  return static_cast<int>(blocks_for(columns, kColumnsPerThread * kWarp)) * kWarp;
}

}  // namespace whole_rows

// A team of warps has one or two rows at a time, each thread at most 8 columns of them: vectors t, t + threads, ... The
// thread adds the gradients of these columns' parameters over all rows of its team. It copies its part of later rows to
// shared memory meanwhile, where only it reads it: this needs no barrier, and rows on their way need no registers.

template <class T>
struct NormBackward {
  Matrix<const T> grad, sum_grad, s;
  const T* weight;
  const float *mean, *inverse_root;
  T* s_grad;
  float* partials;
};

constexpr int kColumnsPerWarp = kColumnsPerThread * kWarp;
constexpr int kMostWarps = kWidestNorm / kColumnsPerWarp, kMostTeams = 8;

enum class Parameters { Weight, WeightAndBias, WeightAndBiases };  // the last: with that of the branch

template <Parameters kParameters>
constexpr int kCount = static_cast<int>(kParameters) + 1;

// The most warps of a block whose threads have registers for all sums and for two rows of bf16; an RMS norm has fewer
// sums.
template <Parameters kParameters = Parameters::WeightAndBiases>
constexpr int kFewWarps = kParameters == Parameters::Weight ? 22 : 20;

template <class T, int kWidth, int kWarps>
constexpr int kRowsAtOnce = sizeof(T) == 2 && kWidth > 1 && kWarps < kMostWarps ? 2 : 1;

// How a launch divides its rows.
struct Teams {
  int warps = 1, count = 1;  // of a team; in a block
  int stages = 2;            // of rows that are in shared memory or on their way to it

  // At least two teams if they fit, one of which computes while the other waits.
  explicit Teams(std::int64_t columns)
      : warps(std::max(1, static_cast<int>(blocks_for(columns, kColumnsPerWarp)))),
        count(std::clamp((2 * warps <= kFewWarps<> ? kFewWarps<> : kMostWarps) / warps, 1, kMostTeams)) {}
  __host__ __device__ int threads() const { return warps * kWarp; }                 // of a team
  __host__ __device__ int row_elements() const { return warps * kColumnsPerWarp; }  // in shared memory
};

// The columns of a thread: parts of kWidth.
template <int kWidth>
struct Place {
  static constexpr int kParts = kColumnsPerThread / kWidth;
  using Floats = float[kParts][kWidth];
  int thread, threads, columns;
  float share;  // of a column in a mean

  __device__ int column(int part) const { return (part * threads + thread) * kWidth; }
  __device__ bool has(int part) const { return column(part) < columns; }
};

// What a thread has of a row.
template <class T, int kWidth>
struct Held {
  Vector<T, kWidth> parts[Place<kWidth>::kParts];

  __device__ static Held load(const T* row, const Place<kWidth>& place) {
    Held held;
#pragma unroll
    for (int part = 0; part < place.kParts; ++part)
      held.parts[part] = Vector<T, kWidth>::load(row + place.column(part));
    return held;
  }
  __device__ float operator()(int part, int i) const { return to_float(parts[part].values[i]); }
};

// Rows of a team in shared memory, of s, grad and sum_grad if there is one.
template <class T, int kWidth, int kRows>
struct Ring {
  T* data;
  int row_elements, matrices;
  int step;  // between rows of a team
  const Place<kWidth>& place;

  __device__ T* row_of(int stage, int row, int matrix) const {
    return data + ((stage * kRows + row) * matrices + matrix) * row_elements;
  }
  __device__ Held<T, kWidth> load(int stage, int row, int matrix) const {
    return Held<T, kWidth>::load(row_of(stage, row, matrix), place);
  }
  // kRows rows from `first`; zeros beyond the last row and column.
  __device__ void copy(const NormBackward<T>& norm, int first, int stage) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = first + i * step;
      copy_row(row_of(stage, i, 0), norm.s, row);
      copy_row(row_of(stage, i, 1), norm.grad, row);
      if (matrices == 3) copy_row(row_of(stage, i, 2), norm.sum_grad, row);
    }
    __pipeline_commit();
  }
  __device__ void copy_row(T* to, const Matrix<const T>& x, int row) const {
#pragma unroll
    for (int part = 0; part < place.kParts; ++part) {
      const int column = place.column(part);
      const T* const from = x.data + row * x.stride + column;
      const bool valid = row < x.rows && column < place.columns;
      if constexpr (kWidth * sizeof(T) == 16)
        copy_async(to + column, from, valid);
      else
        to[column] = valid ? *from : from_float<T>(0);
    }
  }
};

// All but the last `stages - 1` groups of copies.
__device__ void wait_for_copies(int stages) {
  if (stages > 1)
    __pipeline_wait_prior(1);
  else
    __pipeline_wait_prior(0);
}

// Sums of values over a team, in each of its threads. `scratch` has an element per warp of the block, and is used again
// only after another call.
template <int kValues>
__device__ void team_sum(float (&x)[kValues], Vector<float, kValues>* scratch, int team, int warps) {
  constexpr int kLanes = kWarp / kValues;  // that have the same sum
  const int lane = threadIdx.x % kWarp;
  int other = kWarp / 2;
#pragma unroll
  for (int kept = kValues / 2; kept > 0; kept /= 2, other /= 2)  // of two lanes, each adds half of the values
#pragma unroll
    for (int i = 0; i < kept; ++i) {
      const float low = x[i], high = x[kept + i];
      const bool is_high = lane & other;
      x[i] = (is_high ? high : low) + __shfl_xor_sync(~0u, is_high ? low : high, other);
    }
  float own = x[0];
  for (other = kLanes / 2; other > 0; other /= 2) own += __shfl_xor_sync(~0u, own, other);
  if (warps == 1) {
    for (int i = 0; i < kValues; ++i) x[i] = __shfl_sync(~0u, own, i * kLanes);
    return;
  }
  if (lane % kLanes == 0) scratch[threadIdx.x / kWarp].values[lane / kLanes] = own;
  wait_for_threads(team + 1, warps * kWarp);
  for (float& sum : x) sum = 0;
#pragma unroll 4
  for (int warp = 0; warp < warps; ++warp) {
    const auto sums = scratch[team * warps + warp];
    for (int i = 0; i < kValues; ++i) x[i] += sums.values[i];
  }
}

// A thread's part of a row. With n the normalised row, g = grad * weight and means over columns:
//   gradient of s = inverse_root * (g - n * mean(g n) - mean(g)) + sum_grad, the third term in a layer norm only.
template <class T, int kWidth, Parameters kParameters>
struct Row {
  static constexpr bool kCentred = kParameters != Parameters::Weight;
  static constexpr int kParts = Place<kWidth>::kParts;
  static constexpr int kSums = kCentred ? 2 : 1;  // over columns: of g n, of g
  using Grads = typename Place<kWidth>::Floats[kCount<kParameters>];

  Held<T, kWidth> s, grad, sum_grad;
  float root, shift;  // n = s * root + shift

  __device__ void add_to(Grads& grads, const Held<T, kWidth>& weight, float* sums) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float slope = grad(part, i), normed = fmaf(s(part, i), root, shift), scaled = slope * weight(part, i);
        grads[0][part][i] += slope * normed;
        sums[0] += scaled * normed;
        if constexpr (kCentred) grads[1][part][i] += slope, sums[1] += scaled;
      }
  }
  // The gradient of s, given the sums over the whole row. It is added to that of the branch's bias.
  __device__ void write(T* s_grad, bool valid, bool adds, Grads& grads, const Held<T, kWidth>& weight,
                        const float* sums, const Place<kWidth>& place) {
    const float share = -place.share * root;
    const float along = sums[0] * share, total = kCentred ? sums[kSums - 1] * share : 0.f;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      forget(s.parts[part]), forget(grad.parts[part]);
      float result[kWidth];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float normed = fmaf(s(part, i), root, shift), scaled = grad(part, i) * weight(part, i);
        result[i] = scaled * root + fmaf(normed, along, total);
        if (adds) result[i] += sum_grad(part, i);
        if constexpr (kParameters == Parameters::WeightAndBiases) grads[2][part][i] += result[i];
      }
      if (valid && place.has(part)) pack<T>(result).store(s_grad + place.column(part));
    }
  }
};

// The sums of the block's teams, added in their order. `scratch` has room for those of all.
template <int kWidth, int kKinds>
__device__ void write_sums(const typename Place<kWidth>::Floats (&sums)[kKinds], float* scratch, float* partials,
                           const Place<kWidth>& place, int team, int teams) {
  using Floats = Vector<float, kWidth>;
  const int parameters = kKinds * place.columns;
  __syncthreads();
#pragma unroll
  for (int kind = 0; kind < kKinds; ++kind)
#pragma unroll
    for (int part = 0; part < place.kParts; ++part)
      if (place.has(part))
        pack<float>(sums[kind][part]).store(scratch + team * parameters + kind * place.columns + place.column(part));
  __syncthreads();
  for (int at = threadIdx.x * kWidth; at < parameters; at += blockDim.x * kWidth) {
    auto sum = Floats::load(scratch + at);
    for (int other = 1; other < teams; ++other) {
      const auto more = Floats::load(scratch + other * parameters + at);
      for (int i = 0; i < kWidth; ++i) sum.values[i] += more.values[i];
    }
    sum.store(partials + std::int64_t{blockIdx.x} * parameters + at);
  }
}

template <class T, int kWidth, Parameters kParameters, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp, 1) backward(NormBackward<T> norm, Teams teams) {
  using OwnRow = Row<T, kWidth, kParameters>;
  constexpr int kRows = kRowsAtOnce<T, kWidth, kWarps>, kSums = OwnRow::kSums;
  extern __shared__ __align__(32) unsigned char shared[];
  __shared__ Vector<float, kRows * kSums> scratch[2][kWarps];
  wait_for_previous();
  const int columns = static_cast<int>(norm.s.columns), rows = static_cast<int>(norm.s.rows);
  const int team = threadIdx.x / teams.threads(), lane = threadIdx.x % kWarp;
  const int first = blockIdx.x * teams.count + team, step = gridDim.x * teams.count;
  const Place<kWidth> place = {static_cast<int>(threadIdx.x) - team * teams.threads(), teams.threads(), columns,
                               1.f / columns};
  const bool adds = norm.sum_grad.data;
  Ring<T, kWidth, kRows> ring = {reinterpret_cast<T*>(shared), teams.row_elements(), adds ? 3 : 2, step, place};
  ring.data = ring.row_of(team * teams.stages, 0, 0);

  for (int stage = 0; stage < teams.stages; ++stage) ring.copy(norm, first + stage * kRows * step, stage);
  Held<T, kWidth> weight;
  for (int part = 0; part < place.kParts; ++part)  // beyond the columns, grad is zero
    weight.parts[part] = Vector<T, kWidth>::load(norm.weight + (place.has(part) ? place.column(part) : 0));
  typename OwnRow::Grads grads = {};
  float roots = 0, means = 0;  // of the next 32 rows, one per lane
  int stage = 0, turn = 0;
  for (int row = first; row < rows; row += kRows * step, turn += kRows) {
    if (turn % kWarp == 0) {
      const int own = row + lane * step;
      roots = own < rows ? norm.inverse_root[own] : 0.f;
      if (OwnRow::kCentred) means = own < rows ? norm.mean[own] : 0.f;
    }
    wait_for_copies(teams.stages);
    OwnRow held[kRows];
    float sums[kRows * kSums] = {};
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      held[i].s = ring.load(stage, i, 0), held[i].grad = ring.load(stage, i, 1);
      if (adds) held[i].sum_grad = ring.load(stage, i, 2);
    }
    ring.copy(norm, row + teams.stages * kRows * step, stage);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      held[i].root = __shfl_sync(~0u, roots, (turn + i) % kWarp);
      held[i].shift = OwnRow::kCentred ? -held[i].root * __shfl_sync(~0u, means, (turn + i) % kWarp) : 0.f;
      held[i].add_to(grads, weight, sums + i * kSums);
    }
    team_sum(sums, scratch[turn / kRows % 2], team, teams.warps);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int own = row + i * step;
      held[i].write(norm.s_grad + std::int64_t{own} * columns, own < rows, adds, grads, weight, sums + i * kSums,
                    place);
    }
    stage = teams.stages - 1 - stage;
  }
  copies_arrived();
  write_sums<kWidth>(grads, reinterpret_cast<float*>(shared), norm.partials, place, team, teams.count);
}

template <class T, int kWidth, Parameters kParameters, int kWarps>
void launch(const NormBackward<T>& norm, Teams teams, std::int64_t blocks, cudaStream_t stream) {
  const auto bytes = [&] {
    const int rows = teams.stages * kRowsAtOnce<T, kWidth, kWarps> * (norm.sum_grad.data ? 3 : 2);
    return teams.count *
           std::max(rows * teams.row_elements() * sizeof(T), kCount<kParameters> * norm.s.columns * sizeof(float));
  };
  int device = 0, most = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  constexpr std::size_t kScratchBytes = 2 * kMostWarps * sizeof(float4);
  if (bytes() + kScratchBytes > static_cast<std::size_t>(most)) teams.stages = 1;  // on GPUs before sm_90
  const auto kernel = backward<T, kWidth, kParameters, kWarps>;
  launch_kernel(kernel, {blocks, teams.count * teams.threads(), bytes(), stream}, norm, teams);
}

}  // namespace

// Blocks sum some rows each, and a second kernel adds their partial sums. One part of all rows, whose sums need none,
// is enough if the columns alone make enough blocks.
void column_sum(const Tensor& x, const Tensor& sums, const Queue& queue) {
  if (x.columns() == 0) return;
  const std::int64_t blocks_of_columns = blocks_for(x.columns(), kRowVectors * kVectorWidth<__nv_bfloat16>);
  const std::int64_t wanted = kSumBlocks * multiprocessors() / blocks_of_columns;
  const auto parts = static_cast<unsigned>(
      std::clamp<std::int64_t>(x.rows() / (kSumThreads / kRowVectors), 1, std::max<std::int64_t>(wanted, 1)));
  float* const partials = queue.scratch<float>(parts * x.columns());
  with_vectors(x.columns(), {x}, [&]<class T, int kWidth>() {
    const dim3 grid(blocks_for(x.columns(), kRowVectors * kWidth), parts);
    launch_kernel(sum_rows<kWidth, T>, {grid, kSumThreads, 0, queue}, x, partials, sums);
    if (parts > 1) add_partials<T>({partials, parts, x.columns(), x.columns()}, sums, queue);
  });
}

void norm_forward(const Tensor& x, const Tensor& branch, const Tensor& branch_bias, const Tensor& weight,
                  const Tensor& bias, float eps, const Tensor& sum, const Tensor& y, const Tensor& mean,
                  const Tensor& inverse_root, const Queue& queue) {
  using namespace whole_rows;
  with_vectors(x.columns(), {x, branch, branch_bias, weight, bias}, [&]<class T, int kWidth>() {
    const auto kernel = bias.data ? forward<T, kWidth, true> : forward<T, kWidth, false>;
    launch_kernel(kernel, {x.rows(), threads_for(x.columns()), 0, queue},
                  NormForward<T>{x, branch, branch_bias, weight, bias, eps, sum, y, mean, inverse_root});
  });
}

void norm_backward(const Tensor& grad, const Tensor& sum_grad, const Tensor& s, const Tensor& weight,
                   const Tensor& mean, const Tensor& inverse_root, const Tensor& s_grad, const Tensor& parameter_grads,
                   const Queue& queue) {
  const std::int64_t columns = s.columns(), parameters = parameter_grads.elements();
  if (columns == 0) return;
  const Teams teams(columns);
  // One block per multiprocessor: its teams keep enough rows on their way.
  const std::int64_t blocks = std::min<std::int64_t>(blocks_for(s.rows(), teams.count), multiprocessors());
  float* const partials = queue.scratch<float>(blocks * parameters);
  with_vectors(columns, {s, grad, sum_grad, weight}, [&]<class T, int kWidth>() {
    const auto launch_for = [&]<Parameters kParameters>() {
      const bool are_few = teams.count * teams.warps <= kFewWarps<kParameters>;
      const auto launcher =
          are_few ? launch<T, kWidth, kParameters, kFewWarps<kParameters>> : launch<T, kWidth, kParameters, kMostWarps>;
      launcher({grad, sum_grad, s, weight, mean, inverse_root, s_grad, partials}, teams, blocks, queue);
    };
    if (parameter_grads.rows() == 3)
      launch_for.template operator()<Parameters::WeightAndBiases>();
    else if (parameter_grads.rows() == 2)
      launch_for.template operator()<Parameters::WeightAndBias>();
    else
      launch_for.template operator()<Parameters::Weight>();
    add_partials<T>({partials, blocks, parameters, parameters}, parameter_grads, queue);
  });
}

}  // namespace braid::kernels
