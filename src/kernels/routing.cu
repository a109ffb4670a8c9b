// One warp per token; lane l holds experts l, l + 32, ...: kPerLane of them.
#include <algorithm>

#include "kernels/device.cuh"
#include "kernels/moe.h"

namespace braid::kernels {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kTokensPerChunk = 32;

__device__ int lane() { return threadIdx.x % kWarp; }
__device__ int warp() { return threadIdx.x / kWarp; }

// visit(i, expert) for this lane's experts
template <int kPerLane, class Visit>
__device__ void for_own_experts(int experts, Visit visit) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    if (const int expert = i * kWarp + lane(); expert < experts) visit(i, expert);
}

// Integers in the order of numbers; NaN is the largest, as in libtorch's sorts. None of them is 0.
__device__ unsigned sortable(float x) {
  if (isnan(x)) return ~0u;
  const unsigned bits = __float_as_uint(x + 0.f);  // +0 and -0 are equal
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The expert with the largest key, the lowest of equal ones, in every lane; its key becomes 0.
template <int kPerLane>
__device__ int take_best(unsigned (&keys)[kPerLane]) {
  unsigned best = 0, expert = ~0u;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) best = max(best, keys[i]);
  best = __reduce_max_sync(~0u, best);
#pragma unroll
  for (int i = kPerLane - 1; i >= 0; --i)
    if (keys[i] == best) expert = i * kWarp + lane();
  expert = __reduce_min_sync(~0u, expert);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    if (expert == i * kWarp + lane()) keys[i] = 0;
  return static_cast<int>(expert);
}

// values[expert / 32] of the lane that holds the expert
template <int kPerLane>
__device__ float value_of(const float (&values)[kPerLane], int expert) {
  float value = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    if (expert / kWarp == i) value = values[i];
  return __shfl_sync(~0u, value, expert % kWarp);
}

template <int kPerLane>
__global__ void __launch_bounds__(kThreads)
    route_tokens(const float* logits, const float* bias, RouteSizes sizes, RouteWeights options, float* all_scores,
                 std::int64_t* experts, float* weights) {
  wait_for_previous();
  const std::int64_t token = std::int64_t{blockIdx.x} * kWarps + warp();
  if (token >= sizes.tokens) return;
  float scores[kPerLane] = {};
  unsigned keys[kPerLane] = {};
  for_own_experts<kPerLane>(sizes.experts, [&](int i, int expert) {
    scores[i] = 1.f / (1.f + expf(-logits[token * sizes.experts + expert]));
    keys[i] = sortable(scores[i] + bias[expert]);
    all_scores[token * sizes.experts + expert] = scores[i];
  });
  float chosen = 0;  // lane j holds the j-th choice
  for (int j = 0; j < sizes.top_k; ++j) {
    const int expert = take_best(keys);
    const float score = value_of(scores, expert);
    if (lane() != j) continue;
    chosen = score;
    experts[token * sizes.top_k + j] = expert;
  }
  const float sum = warp_sum(chosen) + options.never_zero;
  if (lane() < sizes.top_k)
    weights[token * sizes.top_k + lane()] = (options.normalize ? chosen / sum : chosen) * options.scaling;
}

// With S the sum and w = scaling * c / S:   dw_i / dc_j = scaling * ([i == j] - c_i / S) / S
template <int kPerLane>
__global__ void __launch_bounds__(kThreads)
    route_tokens_backward(const float* scores_grad, const float* weights_grad, const float* scores,
                          const std::int64_t* experts, RouteSizes sizes, RouteWeights options, float* logits_grad) {
  wait_for_previous();
  const std::int64_t token = std::int64_t{blockIdx.x} * kWarps + warp(), row = token * sizes.experts;
  if (token >= sizes.tokens) return;
  int choice = -1;
  float chosen = 0, grad = 0;
  if (lane() < sizes.top_k) {
    choice = static_cast<int>(experts[token * sizes.top_k + lane()]);
    chosen = scores[row + choice];
    grad = weights_grad[token * sizes.top_k + lane()] * options.scaling;
  }
  if (options.normalize) {
    const float sum = warp_sum(chosen) + options.never_zero;
    grad = (grad - warp_sum(grad * (chosen / sum))) / sum;
  }
  float totals[kPerLane] = {};
  for_own_experts<kPerLane>(sizes.experts, [&](int i, int expert) { totals[i] = scores_grad[row + expert]; });
  for (int j = 0; j < sizes.top_k; ++j) {
    const int expert = __shfl_sync(~0u, choice, j);
    const float of_chosen = __shfl_sync(~0u, grad, j);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (expert == i * kWarp + lane()) totals[i] += of_chosen;
  }
  for_own_experts<kPerLane>(sizes.experts, [&](int i, int expert) {
    const float score = scores[row + expert];
    logits_grad[row + expert] = totals[i] * (1 - score) * score;
  });
}

// Block (c, s) sums over the c-th kTokensPerChunk of this rank's tokens of sample s, each warp over every kWarps-th of
// them. Shared: [kWarps, 2, E] sums of each warp.   partials: [chunks, 2, samples, E]
template <int kPerLane>
__global__ void __launch_bounds__(kThreads)
    sum_shares(const float* scores, RouteSizes sizes, Samples samples, float never_zero, float* partials) {
  wait_for_previous();
  extern __shared__ float of_warps[];
  const std::int64_t sample = blockIdx.y, begin_of_sample = sample * samples.length - samples.first;
  const std::int64_t begin = max(begin_of_sample, std::int64_t{0}) + std::int64_t{blockIdx.x} * kTokensPerChunk;
  const std::int64_t end = min(min(begin + kTokensPerChunk, begin_of_sample + samples.length), sizes.tokens);
  float sums[kPerLane] = {}, counts[kPerLane] = {};
  for (std::int64_t token = begin + warp(); token < end; token += kWarps) {
    float own[kPerLane] = {}, sum = 0;
    unsigned keys[kPerLane] = {};
    for_own_experts<kPerLane>(sizes.experts, [&](int i, int expert) {
      sum += own[i] = scores[token * sizes.experts + expert];
      keys[i] = sortable(own[i]);
    });
    sum = warp_sum(sum) + never_zero;
    for (int j = 0; j < sizes.top_k; ++j) take_best(keys);
    for_own_experts<kPerLane>(sizes.experts, [&](int i, int) {
      sums[i] += own[i] / sum;
      counts[i] += keys[i] == 0;
    });
  }
  for_own_experts<kPerLane>(sizes.experts, [&](int i, int expert) {
    of_warps[warp() * 2 * sizes.experts + expert] = sums[i];
    of_warps[(warp() * 2 + 1) * sizes.experts + expert] = counts[i];
  });
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * sizes.experts; i += kThreads) {
    float sum = 0;
    for (int other = 0; other < kWarps; ++other) sum += of_warps[other * 2 * sizes.experts + i];
    const std::int64_t row = (std::int64_t{blockIdx.x} * 2 + i / sizes.experts) * samples.count + sample;
    partials[row * sizes.experts + i % sizes.experts] = sum;
  }
}

// A warp per column: its sum over rows.   x: [rows, columns]
__global__ void __launch_bounds__(kThreads)
    sum_rows(const float* x, std::int64_t rows, std::int64_t columns, float* sums) {
  wait_for_previous();
  const std::int64_t column = std::int64_t{blockIdx.x} * kWarps + warp();
  if (column >= columns) return;
  float sum = 0;
  for (std::int64_t row = lane(); row < rows; row += kWarp) sum += x[row * columns + column];
  sum = warp_sum(sum);
  if (lane() == 0) sums[column] = sum;
}

__global__ void __launch_bounds__(kThreads)
    dot_in_one_block(const float* a, const float* b, std::int64_t count, float factor, float* result) {
  wait_for_previous();
  __shared__ float scratch[kWarps];
  float sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) sum += a[i] * b[i];
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) *result = sum * factor;
}

template <int kPerLane>
__global__ void __launch_bounds__(kThreads)
    share_gradients(const float* grad, const float* chosen, const float* scores, RouteSizes sizes, Samples samples,
                    float factor, float never_zero, float* scores_grad) {
  wait_for_previous();
  const std::int64_t token = std::int64_t{blockIdx.x} * kWarps + warp();
  if (token >= sizes.tokens) return;
  const std::int64_t sample = (samples.first + token) / samples.length;
  float own[kPerLane] = {}, slopes[kPerLane] = {}, sum = 0, dot = 0;
  const float scale = factor * *grad;
  for_own_experts<kPerLane>(sizes.experts, [&](int i, int expert) {
    own[i] = scores[token * sizes.experts + expert];
    slopes[i] = chosen[sample * sizes.experts + expert] * scale;
    sum += own[i];
    dot += own[i] * slopes[i];
  });
  sum = warp_sum(sum) + never_zero;
  dot = warp_sum(dot) / sum;
  for_own_experts<kPerLane>(
      sizes.experts, [&](int i, int expert) { scores_grad[token * sizes.experts + expert] = (slopes[i] - dot) / sum; });
}

// call.operator()<kPerLane>() for so many experts.
template <class Call>
void with_per_lane(int experts, const Call& call) {
  if (experts <= kWarp)
    call.template operator()<1>();
  else if (experts <= 2 * kWarp)
    call.template operator()<2>();
  else if (experts <= 4 * kWarp)
    call.template operator()<4>();
  else
    call.template operator()<16>();
}

unsigned blocks_of(std::int64_t warps) { return static_cast<unsigned>(blocks_for(warps, kWarps)); }

}  // namespace

void route(const float* logits, const float* bias, RouteSizes sizes, RouteWeights options, float* scores,
           std::int64_t* experts, float* weights, cudaStream_t stream) {
  if (sizes.tokens == 0) return;
  with_per_lane(sizes.experts, [&]<int kPerLane>() {
    launch_kernel(route_tokens<kPerLane>, {blocks_of(sizes.tokens), kThreads, 0, stream}, logits, bias, sizes, options,
                  scores, experts, weights);
  });
}

void route_backward(const float* scores_grad, const float* weights_grad, const float* scores,
                    const std::int64_t* experts, RouteSizes sizes, RouteWeights options, float* logits_grad,
                    cudaStream_t stream) {
  if (sizes.tokens == 0) return;
  with_per_lane(sizes.experts, [&]<int kPerLane>() {
    launch_kernel(route_tokens_backward<kPerLane>, {blocks_of(sizes.tokens), kThreads, 0, stream}, scores_grad,
                  weights_grad, scores, experts, sizes, options, logits_grad);
  });
}

std::int64_t expert_share_chunks(const Samples& samples, std::int64_t tokens) {
  return std::max<std::int64_t>(1, blocks_for(std::min(samples.length, tokens), kTokensPerChunk));
}

void expert_shares(const float* scores, RouteSizes sizes, Samples samples, float never_zero, float* partials,
                   float* sums, cudaStream_t stream) {
  const std::int64_t chunks = expert_share_chunks(samples, sizes.tokens), columns = 2 * samples.count * sizes.experts;
  const dim3 blocks(static_cast<unsigned>(chunks), static_cast<unsigned>(samples.count));
  const std::size_t shared_bytes = sizeof(float) * kWarps * 2 * sizes.experts;
  with_per_lane(sizes.experts, [&]<int kPerLane>() {
    launch_kernel(sum_shares<kPerLane>, {blocks, kThreads, shared_bytes, stream}, scores, sizes, samples, never_zero,
                  partials);
  });
  launch_kernel(sum_rows, {blocks_of(columns), kThreads, 0, stream}, partials, chunks, columns, sums);
}

void scaled_dot(const float* a, const float* b, std::int64_t count, float factor, float* result, cudaStream_t stream) {
  launch_kernel(dot_in_one_block, {1, kThreads, 0, stream}, a, b, count, factor, result);
}

void expert_shares_backward(const float* grad, const float* chosen, const float* scores, RouteSizes sizes,
                            Samples samples, float factor, float never_zero, float* scores_grad, cudaStream_t stream) {
  if (sizes.tokens == 0) return;
  with_per_lane(sizes.experts, [&]<int kPerLane>() {
    launch_kernel(share_gradients<kPerLane>, {blocks_of(sizes.tokens), kThreads, 0, stream}, grad, chosen, scores,
                  sizes, samples, factor, never_zero, scores_grad);
  });
}

}  // namespace braid::kernels
