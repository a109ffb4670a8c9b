// One warp per token; lane l holds experts l, l + 32, ...: kPerLane of them.
#include <algorithm>
#include "kernels/device.cuh"
#include "kernels/moe.h"

namespace braid::kernels {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kTokensPerChunk = 32;

struct RouteSizes {
  std::int64_t tokens;
  int experts, top_k;

  RouteSizes(const Tensor& scores, std::int64_t top_k)
      : tokens(scores.rows()), experts(static_cast<int>(scores.columns())), top_k(static_cast<int>(top_k)) {}
};

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

LaunchShape warp_per_row(std::int64_t rows, const Queue& queue) {
  return {blocks_for(rows, kWarps), kThreads, 0, queue};
}

// The rows of tokens in the order of their experts.

struct SortedSlots {
  std::int64_t *order, *inverse, *counts;
  std::int32_t* ends;
};

constexpr std::int64_t kMostBlocks = 128;

// Every warp takes so many consecutive slots that kMostBlocks blocks are enough.
std::int64_t slots_per_warp(std::int64_t slots) {
  return kWarp * std::max<std::int64_t>(1, blocks_for(slots, kThreads * kMostBlocks));
}

struct Slots {
  const std::int64_t* experts;
  std::int64_t count, per_warp;
  int num_experts;
};

// visit(slot, expert, same) for this warp's slots, 32 at a time, where `same` are the lanes with the same expert.
template <class Visit>
__device__ void for_each_slot(const Slots& slots, Visit visit) {
  const std::int64_t begin = (std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp) * slots.per_warp;
  const std::int64_t end = min(begin + slots.per_warp, slots.count);
  for (std::int64_t first = begin; first < end; first += kWarp) {
    const std::int64_t slot = first + threadIdx.x % kWarp;
    const unsigned inside = __ballot_sync(~0u, slot < end);
    if (slot < end) {
      const int expert = static_cast<int>(slots.experts[slot]);
      visit(slot, expert, __match_any_sync(inside, expert));
    }
    __syncwarp();
  }
}

__device__ int rank_in(unsigned lanes) { return __popc(lanes & ((1u << threadIdx.x % kWarp) - 1)); }

// counts: [kWarps, num_experts] in shared memory, the slots of each warp for each expert
__device__ void count_slots(const Slots& slots, int* counts) {
  for (int i = threadIdx.x; i < kWarps * slots.num_experts; i += kThreads) counts[i] = 0;
  __syncthreads();
  int* of_warp = counts + threadIdx.x / kWarp * slots.num_experts;
  for_each_slot(slots, [&](std::int64_t, int expert, unsigned same) {
    if (rank_in(same) == 0) of_warp[expert] += __popc(same);
  });
  __syncthreads();
}

// block_counts: [gridDim.x, num_experts]
__global__ void __launch_bounds__(kThreads) count_blocks(Slots slots, std::int32_t* block_counts) {
  wait_for_previous();
  extern __shared__ int counts[];
  count_slots(slots, counts);
  for (int expert = threadIdx.x; expert < slots.num_experts; expert += kThreads) {
    int sum = 0;
    for (int warp = 0; warp < kWarps; ++warp) sum += counts[warp * slots.num_experts + expert];
    block_counts[std::int64_t{blockIdx.x} * slots.num_experts + expert] = sum;
  }
}

// Replaces totals[e] by the sum over all lower experts. One warp runs it.
__device__ void exclusive_scan(int* totals, int num_experts) {
  const int lane = threadIdx.x % kWarp;
  int carry = 0;
  for (int first = 0; first < num_experts; first += kWarp) {
    const int own = first + lane < num_experts ? totals[first + lane] : 0;
    int sum = own;
    for (int step = 1; step < kWarp; step *= 2) {
      const int lower = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += lower;
    }
    if (first + lane < num_experts) totals[first + lane] = carry + sum - own;
    carry += __shfl_sync(~0u, sum, kWarp - 1);
  }
}

// Each block adds up the counts of all blocks itself, counts its own slots per warp again, and so knows the first row
// of each of its warps for each expert. Shared: [kWarps, num_experts] next rows, [num_experts] first rows,
// [num_experts] slots in earlier blocks.
__global__ void __launch_bounds__(kThreads) place(Slots slots, const std::int32_t* block_counts, SortedSlots sorted) {
  wait_for_previous();
  extern __shared__ int next_rows[];
  const int experts = slots.num_experts, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  int *first_rows = next_rows + kWarps * experts, *in_earlier_blocks = first_rows + experts;
  count_slots(slots, next_rows);
  for (int expert = warp; expert < experts; expert += kWarps) {
    int total = 0, earlier = 0;
    for (unsigned block = lane; block < gridDim.x; block += kWarp) {
      const int count = block_counts[std::int64_t{block} * experts + expert];
      total += count;
      if (block < blockIdx.x) earlier += count;
    }
    total = __reduce_add_sync(~0u, total);
    earlier = __reduce_add_sync(~0u, earlier);
    if (lane != 0) continue;
    first_rows[expert] = total;
    in_earlier_blocks[expert] = earlier;
    if (blockIdx.x == 0) sorted.counts[expert] = total;
  }
  __syncthreads();
  if (warp == 0) exclusive_scan(first_rows, experts);
  __syncthreads();
  for (int expert = threadIdx.x; expert < experts; expert += kThreads) {
    if (blockIdx.x == 0)
      sorted.ends[expert] = expert + 1 < experts ? first_rows[expert + 1] : static_cast<int>(slots.count);
    int row = first_rows[expert] + in_earlier_blocks[expert];
    for (int i = 0; i < kWarps; ++i) {
      const int count = next_rows[i * experts + expert];
      next_rows[i * experts + expert] = row;
      row += count;
    }
  }
  __syncthreads();
  int* of_warp = next_rows + warp * experts;
  for_each_slot(slots, [&](std::int64_t slot, int expert, unsigned same) {
    const std::int64_t row = of_warp[expert] + rank_in(same);
    sorted.order[row] = slot;
    sorted.inverse[slot] = row;
    __syncwarp(same);
    if (rank_in(same) == 0) of_warp[expert] += __popc(same);
  });
}

constexpr int kBatch = 8;  // rows of a token that are on their way at once

// A block per token; a thread keeps one element of its row at a time and writes it k times. Elements are the matrix's,
// or uint4 for several of them.
template <class Element>
__global__ void permute(Matrix<const Element> x, const std::int64_t* inverse, int top_k, Element* rows) {
  wait_for_previous();
  const std::int64_t token = blockIdx.x;
  for (std::int64_t column = threadIdx.x; column < x.columns; column += blockDim.x) {
    const Element value = x.data[token * x.stride + column];
    for (int first = 0; first < top_k; first += kBatch) {
      std::int64_t row[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        if (first + i < top_k) row[i] = inverse[token * top_k + first + i];
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        if (first + i < top_k) rows[row[i] * x.columns + column] = value;
    }
  }
}

// A block per token; a thread loads its columns of kBatch rows before it adds the first of them.
template <int kWidth, class T>
__global__ void unpermute(const T* rows, const std::int64_t* inverse, int top_k, Matrix<const T> added, Matrix<T> y) {
  wait_for_previous();
  const std::int64_t token = blockIdx.x;
  for (std::int64_t column = threadIdx.x * kWidth; column < y.columns; column += blockDim.x * kWidth) {
    float sums[kWidth] = {};
    for (int first = 0; first < top_k; first += kBatch) {
      Vector<T, kWidth> values[kBatch] = {};
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        if (first + i < top_k)
          values[i] = Vector<T, kWidth>::load(rows + inverse[token * top_k + first + i] * y.columns + column);
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        for (int j = 0; j < kWidth; ++j) sums[j] += to_float(values[i].values[j]);
    }
    Vector<T, kWidth> result = {};
    if (added.data) result = Vector<T, kWidth>::load(added.data + token * added.stride + column);
    for (int j = 0; j < kWidth; ++j) result.values[j] = from_float<T>(sums[j] + to_float(result.values[j]));
    result.store(y.data + token * y.stride + column);
  }
}

int threads_for(std::int64_t columns, int width) {
  const std::int64_t warps = blocks_for(blocks_for(columns, width), kWarp);
  return static_cast<int>(std::min<std::int64_t>(warps, 16)) * kWarp;
}

constexpr std::int64_t kMostClearingBlocks = 32;  // per expert

// Block (b, e) works on expert e.
__global__ void __launch_bounds__(kThreads) clear(const std::int32_t* ends, std::int64_t size, __nv_bfloat16* grad) {
  wait_for_previous();
  const unsigned expert = blockIdx.y;
  if (ends[expert] > (expert == 0 ? 0 : ends[expert - 1])) return;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < size; i += gridDim.x * kThreads)
    grad[expert * size + i] = from_float<__nv_bfloat16>(0);
}

}  // namespace

void route(const Tensor& logits, const Tensor& bias, const RouteWeights& options, const Tensor& scores,
           const Tensor& experts, const Tensor& weights, const Queue& queue) {
  const RouteSizes sizes(logits, experts.columns());
  with_per_lane(sizes.experts, [&]<int kPerLane>() {
    launch_kernel(route_tokens<kPerLane>, warp_per_row(sizes.tokens, queue), logits, bias, sizes, options, scores,
                  experts, weights);
  });
}

void route_backward(const Tensor& scores_grad, const Tensor& weights_grad, const Tensor& scores, const Tensor& experts,
                    const RouteWeights& options, const Tensor& logits_grad, const Queue& queue) {
  const RouteSizes sizes(scores, experts.columns());
  with_per_lane(sizes.experts, [&]<int kPerLane>() {
    launch_kernel(route_tokens_backward<kPerLane>, warp_per_row(sizes.tokens, queue), scores_grad, weights_grad, scores,
                  experts, sizes, options, logits_grad);
  });
}

void expert_shares(const Tensor& scores, std::int64_t top_k, const Samples& samples, float never_zero,
                   const Tensor& sums, const Queue& queue) {
  const RouteSizes sizes(scores, top_k);
  const std::int64_t columns = sums.elements();
  const auto chunks = std::max<std::int64_t>(1, blocks_for(std::min(samples.length, sizes.tokens), kTokensPerChunk));
  float* const partials = queue.scratch<float>(chunks * columns);
  const std::size_t shared_bytes = sizeof(float) * kWarps * 2 * sizes.experts;
  with_per_lane(sizes.experts, [&]<int kPerLane>() {
    launch_kernel(sum_shares<kPerLane>, {dim3(chunks, samples.count), kThreads, shared_bytes, queue}, scores, sizes,
                  samples, never_zero, partials);
  });
  launch_kernel(sum_rows, warp_per_row(columns, queue), partials, chunks, columns, sums);
}

void scaled_dot(const Tensor& a, const Tensor& b, float factor, const Tensor& result, const Queue& queue) {
  launch_kernel(dot_in_one_block, {1, kThreads, 0, queue}, a, b, a.elements(), factor, result);
}

void expert_shares_backward(const Tensor& grad, const Tensor& chosen, const Tensor& scores, const Samples& samples,
                            float factor, float never_zero, const Tensor& scores_grad, const Queue& queue) {
  const RouteSizes sizes(scores, 0);
  with_per_lane(sizes.experts, [&]<int kPerLane>() {
    launch_kernel(share_gradients<kPerLane>, warp_per_row(sizes.tokens, queue), grad, chosen, scores, sizes, samples,
                  factor, never_zero, scores_grad);
  });
}

void sort_by_expert(const Tensor& experts, const Tensor& order, const Tensor& inverse, const Tensor& counts,
                    const Tensor& ends, const Queue& queue) {
  const int num_experts = static_cast<int>(counts.rows());
  const Slots slots = {experts, experts.rows(), slots_per_warp(experts.rows()), num_experts};
  const std::int64_t blocks = std::max<std::int64_t>(1, blocks_for(slots.count, slots.per_warp * kWarps));
  auto* const block_counts = queue.scratch<std::int32_t>(blocks * num_experts);
  const std::size_t row_bytes = sizeof(int) * num_experts;
  launch_kernel(count_blocks, {blocks, kThreads, kWarps * row_bytes, queue}, slots, block_counts);
  launch_kernel(place, {blocks, kThreads, (kWarps + 2) * row_bytes, queue}, slots, block_counts,
                SortedSlots{order, inverse, counts, ends});
}

void permute_to_experts(const Tensor& x, const Tensor& inverse, std::int64_t top_k, const Tensor& rows,
                        const Queue& queue) {
  with_vectors(x.columns(), {x, rows}, [&]<class T, int kWidth>() {
    using Element = std::conditional_t<kWidth == 1, T, uint4>;
    const Matrix<const Element> tokens = {x, x.rows(), x.columns() / kWidth, x.strides[0] / kWidth};
    launch_kernel(permute<Element>, {x.rows(), threads_for(tokens.columns, 1), 0, queue}, tokens, inverse, top_k, rows);
  });
}

void unpermute_from_experts(const Tensor& rows, const Tensor& inverse, std::int64_t top_k, const Tensor& added,
                            const Tensor& y, const Queue& queue) {
  with_vectors(y.columns(), {rows, added, y}, [&]<class T, int kWidth>() {
    launch_kernel(unpermute<kWidth, T>, {y.rows(), threads_for(y.columns(), kWidth), 0, queue}, rows, inverse, top_k,
                  added, y);
  });
}

void clear_gradients(const Tensor& ends, const Tensor& grad, const Queue& queue) {
  const std::int64_t experts = grad.sizes[0], size = grad.sizes[1] * grad.sizes[2];
  const dim3 grid(std::min(blocks_for(size, kThreads), kMostClearingBlocks), experts);
  launch_kernel(clear, {grid, kThreads, 0, queue}, ends, size, grad);
}

}  // namespace braid::kernels
