#include <cfloat>

#include "kernels/cross_entropy.h"
#include "kernels/device.cuh"

namespace braid::kernels {
namespace {

// Forward has a block of threads for each row, and a thread loads some vectors before it uses the first. Backward has a
// block for each piece of a row, with some vectors for each thread.
constexpr int kRowThreads = 512, kVectorsAtOnce = 4;
constexpr int kPieceThreads = 256, kPieceVectors = 4;

// The largest of some logits, and the sum of exp(logit - max). The difference of two logits is exact where it matters,
// so fast_exp() is as precise as exp.
struct SoftmaxSum {
  float max = -FLT_MAX, sum = 0;

  __device__ void raise_to(float larger) {
    sum *= fast_exp(max - larger);
    max = larger;
  }
};

template <class T, int kWidth, int kCount>
__device__ void add_vectors(SoftmaxSum& total, const Vector<T, kWidth> (&vectors)[kCount]) {
  float largest = total.max;
  for (const auto& vector : vectors)
    for (const T value : vector.values) largest = fmaxf(largest, to_float(value));
  if (largest > total.max) total.raise_to(largest);
  for (const auto& vector : vectors)
    for (const T value : vector.values) total.sum += fast_exp(to_float(value) - total.max);
}

// Of the vectors that this thread reads.
template <int kWidth, class T>
__device__ SoftmaxSum sum_own(const T* row, std::int64_t columns) {
  constexpr std::int64_t kStep = kRowThreads * kWidth;
  using Loaded = Vector<T, kWidth>;
  SoftmaxSum total;
  std::int64_t begin = threadIdx.x * kWidth;
  for (; begin + (kVectorsAtOnce - 1) * kStep < columns; begin += kVectorsAtOnce * kStep) {
    Loaded vectors[kVectorsAtOnce];
#pragma unroll
    for (int i = 0; i < kVectorsAtOnce; ++i) vectors[i] = Loaded::load(row + begin + i * kStep);
    add_vectors(total, vectors);
  }
  for (; begin < columns; begin += kStep) {
    const Loaded vectors[1] = {Loaded::load(row + begin)};
    add_vectors(total, vectors);
  }
  return total;
}

__device__ float warp_max(float x) {
  for (int lane = kWarp / 2; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, lane));
  return x;
}

// Of all threads of a block, in each of them.
__device__ SoftmaxSum add_all(SoftmaxSum own) {
  __shared__ float largest[kWarp], sums[kWarp];
  const float in_warp = warp_max(own.max);
  if (threadIdx.x % kWarp == 0) largest[threadIdx.x / kWarp] = in_warp;
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  own.raise_to(warp_max(lane < kRowThreads / kWarp ? largest[lane] : -FLT_MAX));
  own.sum = block_sum(own.sum, sums);
  return own;
}

template <int kWidth, class T>
__global__ void __launch_bounds__(kRowThreads)
    forward(Matrix<const T> logits, LabelledColumns columns, RowResults results) {
  wait_for_previous();
  const std::int64_t row = blockIdx.x, label = columns.labels[row];
  const T* data = logits.data + row * logits.stride;
  SoftmaxSum total = {0, 1};
  if (label != columns.ignored) total = add_all(sum_own<kWidth>(data, logits.columns));
  if (threadIdx.x > 0) return;
  const std::int64_t column = label - columns.first;
  const bool is_here = column >= 0 && column < logits.columns && label != columns.ignored;
  const bool is_nowhere = (label < 0 || label >= columns.vocabulary) && label != columns.ignored;
  const float found = is_here ? to_float(data[column]) : 0;
  if (is_nowhere) total.sum = nanf("");
  results.max[row] = total.max;
  results.sum[row] = total.sum;
  results.found[row] = found;
  results.loss[row] = logf(total.sum) - (found - total.max);
}

template <int kWidth, class T>
__global__ void __launch_bounds__(kPieceThreads)
    backward(Matrix<T> logits, LabelledColumns columns, RowInputs inputs, std::int64_t pieces) {
  wait_for_previous();
  constexpr int kStep = kPieceThreads * kWidth;
  const std::int64_t row = blockIdx.x / pieces, piece = blockIdx.x % pieces, label = columns.labels[row];
  const bool is_ignored = label == columns.ignored;
  const float max = inputs.max[row], grad = is_ignored ? 0 : inputs.grad[row], scale = grad / inputs.sum[row];
  T* data = logits.data + row * logits.stride;
#pragma unroll
  for (int i = 0; i < kPieceVectors; ++i) {
    const std::int64_t begin = (piece * kPieceVectors + i) * kStep + threadIdx.x * kWidth;
    if (begin >= logits.columns) break;
    Vector<T, kWidth> vector = {};
    if (!is_ignored) vector = Vector<T, kWidth>::load(data + begin);
    const std::int64_t label_at = label - columns.first - begin;
    for (int k = 0; k < kWidth; ++k) {
      const float probability = fast_exp(to_float(vector.values[k]) - max) * scale;
      vector.values[k] = from_float<T>(is_ignored ? 0 : probability - (k == label_at ? grad : 0));
    }
    vector.store(data + begin);
  }
}

}  // namespace

template <class T>
void cross_entropy_forward(const Matrix<const T>& logits, const LabelledColumns& columns, const RowResults& results,
                           cudaStream_t stream) {
  if (logits.rows == 0) return;
  with_vector_width<T>(is_aligned(logits), logits.columns, [&](auto width) {
    launch_kernel(forward<width(), T>, {logits.rows, kRowThreads, 0, stream}, logits, columns, results);
  });
}

template <class T>
void cross_entropy_backward(const Matrix<T>& logits, const LabelledColumns& columns, const RowInputs& inputs,
                            cudaStream_t stream) {
  if (logits.rows == 0 || logits.columns == 0) return;
  with_vector_width<T>(is_aligned(logits), logits.columns, [&](auto width) {
    const std::int64_t pieces = blocks_for(logits.columns, kPieceThreads * kPieceVectors * width);
    launch_kernel(backward<width(), T>, {logits.rows * pieces, kPieceThreads, 0, stream}, logits, columns, inputs,
                  pieces);
  });
}

template void cross_entropy_forward(const Matrix<const float>&, const LabelledColumns&, const RowResults&,
                                    cudaStream_t);
template void cross_entropy_forward(const Matrix<const __nv_bfloat16>&, const LabelledColumns&, const RowResults&,
                                    cudaStream_t);
template void cross_entropy_backward(const Matrix<float>&, const LabelledColumns&, const RowInputs&, cudaStream_t);
template void cross_entropy_backward(const Matrix<__nv_bfloat16>&, const LabelledColumns&, const RowInputs&,
                                     cudaStream_t);

}  // namespace braid::kernels
