#include <algorithm>

#include "kernels/device.cuh"
#include "kernels/expert_gradients.h"

namespace braid::kernels {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostBlocks = 32;  // per expert

__device__ bool has_rows(const ExpertWeights& weights, unsigned expert) {
  return weights.ends[expert] > (expert == 0 ? 0 : weights.ends[expert - 1]);
}

// Block (b, e) works on expert e.
__global__ void __launch_bounds__(kThreads) clear(ExpertWeights weights, __nv_bfloat16* grad) {
  wait_for_previous();
  if (has_rows(weights, blockIdx.y)) return;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < weights.size; i += gridDim.x * kThreads)
    grad[blockIdx.y * weights.size + i] = from_float<__nv_bfloat16>(0);
}

}  // namespace

void clear_gradients(const ExpertWeights& weights, __nv_bfloat16* grad, cudaStream_t stream) {
  if (weights.experts == 0 || weights.size == 0) return;
  const std::int64_t blocks = std::min(blocks_for(weights.size, kThreads), kMostBlocks);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(weights.experts));
  launch_kernel(clear, {grid, kThreads, 0, stream}, weights, grad);
}

}  // namespace braid::kernels
