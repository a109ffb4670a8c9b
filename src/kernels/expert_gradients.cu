#include <algorithm>

#include "kernels/device.cuh"
#include "kernels/expert_gradients.h"

namespace braid::kernels {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostBlocks = 4096;  // per expert

__device__ bool has_rows(const ExpertWeights& weights, unsigned expert) {
  return weights.ends[expert] > (expert == 0 ? 0 : weights.ends[expert - 1]);
}

// Block (b, e) works on expert e; a thread takes kWidth neighbours at a time.
template <int kWidth>
__global__ void __launch_bounds__(kThreads) add(const __nv_bfloat16* grad, ExpertWeights weights, float* sum) {
  if (!has_rows(weights, blockIdx.y)) return;
  const std::int64_t first = std::int64_t{blockIdx.y} * weights.size;
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads * kWidth;
  for (std::int64_t i = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kWidth; i < weights.size; i += step) {
    const auto addend = Vector<__nv_bfloat16, kWidth>::load(grad + first + i);
    auto values = Vector<float, kWidth>::load(sum + first + i);
    for (int j = 0; j < kWidth; ++j) values.values[j] += to_float(addend.values[j]);
    values.store(sum + first + i);
  }
}

__global__ void __launch_bounds__(kThreads) clear(ExpertWeights weights, __nv_bfloat16* grad) {
  if (has_rows(weights, blockIdx.y)) return;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < weights.size; i += gridDim.x * kThreads)
    grad[blockIdx.y * weights.size + i] = from_float<__nv_bfloat16>(0);
}

dim3 grid(const ExpertWeights& weights, std::int64_t per_block, std::int64_t most_blocks) {
  return dim3(static_cast<unsigned>(std::min(blocks_for(weights.size, per_block), most_blocks)),
              static_cast<unsigned>(weights.experts));
}

}  // namespace

void add_gradients(const __nv_bfloat16* grad, const ExpertWeights& weights, float* sum, cudaStream_t stream) {
  if (weights.experts == 0 || weights.size == 0) return;
  constexpr int kWidth = kVectorWidth<float>;
  if (is_aligned(sum, weights.size) && is_aligned(grad, 0) && weights.size % kWidth == 0)
    add<kWidth><<<grid(weights, kThreads * kWidth, kMostBlocks), kThreads, 0, stream>>>(grad, weights, sum);
  else
    add<1><<<grid(weights, kThreads, kMostBlocks), kThreads, 0, stream>>>(grad, weights, sum);
}

void clear_gradients(const ExpertWeights& weights, __nv_bfloat16* grad, cudaStream_t stream) {
  if (weights.experts == 0 || weights.size == 0) return;
  clear<<<grid(weights, kThreads, 32), kThreads, 0, stream>>>(weights, grad);
}

}  // namespace braid::kernels
