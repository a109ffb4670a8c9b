// A block has a row at a time and holds it in registers: thread t has vectors t, t + blockDim.x, ..., at most 8
// columns. Sums over a row pass through shared memory.
#include <algorithm>

#include "kernels/column_sum.h"
#include "kernels/device.cuh"
#include "kernels/norm.h"

namespace braid::kernels {
namespace {

constexpr int kColumnsPerThread = 8, kMostThreads = kWidestNorm / kColumnsPerThread, kMostWarps = kMostThreads / kWarp;

// Of a backward: registers of a thread, and the threads per multiprocessor that these leave room for.
constexpr int kBackwardRegisters = 56, kBackwardThreads = 1120;

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
  __shared__ float scratch[2][kMostWarps];
  const std::int64_t row = blockIdx.x, columns = norm.x.columns;
  Held<T, kWidth> s, added;
  load_row<T, kWidth>(s, norm.x, row);
  if (norm.branch.data) {
    load_row<T, kWidth>(added, norm.branch, row);
    for_held<kWidth>(columns, [&](int part, int column) {
      for (int i = 0; i < kWidth; ++i)
        s[part].values[i] = from_float<T>(to_float(s[part].values[i]) + to_float(added[part].values[i]));
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

// What a thread holds of one row in a backward.
template <class T, int kWidth>
struct BackwardRow {
  Held<T, kWidth> s, grad, sum_grad;
  float inverse_root, mean;

  __device__ void load(const NormBackward<T>& norm, std::int64_t row) {
    load_row<T, kWidth>(s, norm.s, row);
    load_row<T, kWidth>(grad, norm.grad, row);
    if (norm.sum_grad.data) load_row<T, kWidth>(sum_grad, norm.sum_grad, row);
    inverse_root = norm.inverse_root[row];
    mean = norm.mean ? norm.mean[row] : 0.f;
  }
  __device__ float normed(int part, int i) const { return (to_float(s[part].values[i]) - mean) * inverse_root; }
};

// With n the normalised row, g = grad * weight and means over columns:
//   gradient of s = inverse_root * (g - n * mean(g n) - mean(g)), the last term in a layer norm only.
// Block b takes rows b, b + gridDim.x, ...; its threads add the gradients of weight and bias over them.
template <class T, int kWidth, bool kCentred>
__global__ void __maxnreg__(kBackwardRegisters) backward(NormBackward<T> norm) {
  __shared__ float scratch[2][2][kMostWarps];
  const std::int64_t columns = norm.s.columns;
  float weight_sums[kColumnsPerThread / kWidth][kWidth] = {}, bias_sums[kColumnsPerThread / kWidth][kWidth] = {};
  int turn = 0;
  for (std::int64_t row = blockIdx.x; row < norm.s.rows; row += gridDim.x, turn ^= 1) {
    BackwardRow<T, kWidth> held;
    held.load(norm, row);
    float along = 0, total = 0;
    for_held<kWidth>(columns, [&](int part, int column) {
      const auto weight = Vector<T, kWidth>::load(norm.weight + column);
      for (int i = 0; i < kWidth; ++i) {
        const float normed = held.normed(part, i), slope = to_float(held.grad[part].values[i]);
        weight_sums[part][i] += slope * normed;
        bias_sums[part][i] += slope;
        along += slope * to_float(weight.values[i]) * normed;
        total += slope * to_float(weight.values[i]);
      }
    });
    along = block_sum(along, scratch[turn][0]) / columns;
    if constexpr (kCentred) total = block_sum(total, scratch[turn][1]) / columns;
    for_held<kWidth>(columns, [&](int part, int column) {
      const auto weight = Vector<T, kWidth>::load(norm.weight + column);
      Vector<T, kWidth> result;
      for (int i = 0; i < kWidth; ++i) {
        float g = to_float(held.grad[part].values[i]) * to_float(weight.values[i]) - held.normed(part, i) * along;
        if constexpr (kCentred) g -= total;
        g *= held.inverse_root;
        if (norm.sum_grad.data) g += to_float(held.sum_grad[part].values[i]);
        result.values[i] = from_float<T>(g);
      }
      result.store(norm.s_grad + row * columns + column);
    });
  }
  float* const partials = norm.partials + blockIdx.x * (kCentred ? 2 : 1) * columns;
  for_held<kWidth>(columns, [&](int part, int column) {
    for (int i = 0; i < kWidth; ++i) {
      partials[column + i] = weight_sums[part][i];
      if constexpr (kCentred) partials[columns + column + i] = bias_sums[part][i];
    }
  });
}

int threads_for(std::int64_t columns) {
  return static_cast<int>(blocks_for(columns, kColumnsPerThread * kWarp)) * kWarp;
}

}  // namespace

template <class T>
void norm_forward(const NormForward<T>& norm, cudaStream_t stream) {
  const auto& x = norm.x;
  if (x.rows == 0 || x.columns == 0) return;
  const bool aligned =
      is_aligned(x) && is_aligned(norm.branch) && is_aligned(norm.weight, 0) && is_aligned(norm.bias, 0);
  with_vector_width<T>(aligned, x.columns, [&](auto width) {
    const auto kernel = norm.bias ? forward<T, width(), true> : forward<T, width(), false>;
    kernel<<<x.rows, threads_for(x.columns), 0, stream>>>(norm);
  });
}

std::int64_t norm_partials(std::int64_t rows, std::int64_t columns) {
  const int threads = std::max(threads_for(columns), kWarp);
  return std::min<std::int64_t>(rows, kBackwardThreads / threads * multiprocessors());
}

template <class T>
void norm_backward(const NormBackward<T>& norm, cudaStream_t stream) {
  const auto& s = norm.s;
  const std::int64_t blocks = norm_partials(s.rows, s.columns);
  const bool aligned =
      is_aligned(s) && is_aligned(norm.grad) && is_aligned(norm.sum_grad) && is_aligned(norm.weight, 0);
  if (blocks > 0 && s.columns > 0)
    with_vector_width<T>(aligned, s.columns, [&](auto width) {
      const auto kernel = norm.mean ? backward<T, width(), true> : backward<T, width(), false>;
      kernel<<<blocks, threads_for(s.columns), 0, stream>>>(norm);
    });
  const std::int64_t parameters = (norm.mean ? 2 : 1) * s.columns;
  add_partials({norm.partials, blocks, parameters, parameters}, norm.parameter_grads, stream);
}

template void norm_forward(const NormForward<float>&, cudaStream_t);
template void norm_forward(const NormForward<__nv_bfloat16>&, cudaStream_t);
template void norm_backward(const NormBackward<float>&, cudaStream_t);
template void norm_backward(const NormBackward<__nv_bfloat16>&, cudaStream_t);

}  // namespace braid::kernels
