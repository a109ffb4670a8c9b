#include <algorithm>

#include "kernels/device.cuh"
#include "kernels/moe.h"

namespace braid::kernels {

namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
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

}  // namespace

std::int64_t sort_blocks(std::int64_t slots) {
  return std::max<std::int64_t>(1, blocks_for(slots, slots_per_warp(slots) * kWarps));
}

void sort_by_expert(const std::int64_t* experts, std::int64_t slots, int num_experts, std::int32_t* block_counts,
                    const SortedSlots& sorted, cudaStream_t stream) {
  const Slots division = {experts, slots, slots_per_warp(slots), num_experts};
  const std::int64_t blocks = sort_blocks(slots);
  const std::size_t row_bytes = sizeof(int) * num_experts;
  launch_kernel(count_blocks, {blocks, kThreads, kWarps * row_bytes, stream}, division, block_counts);
  launch_kernel(place, {blocks, kThreads, (kWarps + 2) * row_bytes, stream}, division, block_counts, sorted);
}

template <class T>
void permute_to_experts(Matrix<const T> x, const std::int64_t* inverse, int top_k, T* rows, cudaStream_t stream) {
  if (x.rows == 0 || x.columns == 0) return;
  const auto launch = [&]<class Element>(Matrix<const Element> tokens, Element* to) {
    launch_kernel(permute<Element>, {x.rows, threads_for(tokens.columns, 1), 0, stream}, tokens, inverse, top_k, to);
  };
  constexpr int kWidth = kVectorWidth<T>;
  if (is_aligned(x.data, x.stride) && is_aligned(rows, x.columns))
    launch(Matrix<const uint4>{reinterpret_cast<const uint4*>(x.data), x.rows, x.columns / kWidth, x.stride / kWidth},
           reinterpret_cast<uint4*>(rows));
  else
    launch(x, rows);
}

template <class T>
void unpermute_from_experts(const T* rows, const std::int64_t* inverse, int top_k, Matrix<const T> added, Matrix<T> y,
                            cudaStream_t stream) {
  if (y.rows == 0 || y.columns == 0) return;
  with_vector_width<T>(is_aligned(rows, y.columns) && is_aligned(added) && is_aligned(y), y.columns, [&](auto width) {
    launch_kernel(unpermute<width(), T>, {y.rows, threads_for(y.columns, width), 0, stream}, rows, inverse, top_k,
                  added, y);
  });
}

template void permute_to_experts(Matrix<const float>, const std::int64_t*, int, float*, cudaStream_t);
template void permute_to_experts(Matrix<const __nv_bfloat16>, const std::int64_t*, int, __nv_bfloat16*, cudaStream_t);
template void unpermute_from_experts(const float*, const std::int64_t*, int, Matrix<const float>, Matrix<float>,
                                     cudaStream_t);
template void unpermute_from_experts(const __nv_bfloat16*, const std::int64_t*, int, Matrix<const __nv_bfloat16>,
                                     Matrix<__nv_bfloat16>, cudaStream_t);

namespace {

constexpr std::int64_t kMostClearingBlocks = 32;  // per expert

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
  const std::int64_t blocks = std::min(blocks_for(weights.size, kThreads), kMostClearingBlocks);
  const dim3 grid(blocks, weights.experts);
  launch_kernel(clear, {grid, kThreads, 0, stream}, weights, grad);
}

}  // namespace braid::kernels
