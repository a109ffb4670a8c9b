// A block has a row at a time and holds it in registers: thread t has vectors t, t + blockDim.x, ..., at most 8
// columns. Sums over a row pass through shared memory.
#include "kernels/device.cuh"
#include "kernels/norm.h"

namespace braid::kernels {
namespace {

constexpr int kColumnsPerThread = 8, kMostThreads = kWidestNorm / kColumnsPerThread, kMostWarps = kMostThreads / kWarp;

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
  __shared__ float scratch[2][kMostWarps];
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

}  // namespace

template <class T>
void norm_forward(const NormForward<T>& norm, cudaStream_t stream) {
  const auto& x = norm.x;
  if (x.rows == 0 || x.columns == 0) return;
  const bool aligned = is_aligned(x) && is_aligned(norm.branch) && is_aligned(norm.branch_bias, 0) &&
                       is_aligned(norm.weight, 0) && is_aligned(norm.bias, 0);
  with_vector_width<T>(aligned, x.columns, [&](auto width) {
    const auto kernel = norm.bias ? forward<T, width(), true> : forward<T, width(), false>;
    launch_kernel(kernel, {x.rows, threads_for(x.columns), 0, stream}, norm);
  });
}

template void norm_forward(const NormForward<float>&, cudaStream_t);
template void norm_forward(const NormForward<__nv_bfloat16>&, cudaStream_t);

}  // namespace braid::kernels
