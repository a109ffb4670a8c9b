#include "kernels/adam.h"
#include "kernels/device.cuh"

namespace braid::kernels {
namespace {

constexpr int kThreads = 256, kWide = kVectorWidth<float>;
constexpr int kPerSumBlock = 16384, kPerUpdateBlock = 4096;  // elements; a block works on one range

// A list of ranges in device memory.
struct AdamRanges {
  const AdamRange* data;
  int size;

  explicit AdamRanges(const Tensor& x) : data(x), size(static_cast<int>(x.elements() / sizeof(AdamRange))) {}
};

// The elements that the calling block works on.
struct Piece {
  AdamRange range;
  std::int64_t begin, end;
};

template <int kPerBlock>
__device__ Piece own_piece(const AdamRanges& ranges, std::int64_t AdamRange::*first_block) {
  int low = 0, high = ranges.size - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (ranges.data[middle].*first_block <= blockIdx.x)
      low = middle;
    else
      high = middle - 1;
  }
  const AdamRange range = ranges.data[low];
  const std::int64_t begin = (blockIdx.x - range.*first_block) * kPerBlock;
  return {range, begin, min(begin + kPerBlock, range.count)};
}

template <int kWidth>
__device__ double squares(const float* data, std::int64_t begin, std::int64_t end) {
  double sum = 0;
#pragma unroll 8
  for (std::int64_t i = begin + threadIdx.x * kWidth; i < end; i += kThreads * kWidth) {
    const auto vector = Vector<float, kWidth>::load(data + i);
    double some = 0;
    for (const float value : vector.values) some += static_cast<double>(value) * value;
    sum += some;
  }
  return sum;
}

// A range that does not count adds zero, or NaN if an element is not finite.
__global__ void __launch_bounds__(kThreads) sum_squares_of_pieces(AdamRanges ranges, double* partial) {
  wait_for_previous();
  __shared__ double scratch[kWarp];
  const auto [range, begin, end] = own_piece<kPerSumBlock>(ranges, &AdamRange::first_sum_block);
  const std::int64_t wide_end = range.aligned ? end - end % kWide : begin;
  const double own = squares<kWide>(range.gradient, begin, wide_end) + squares<1>(range.gradient, wide_end, end);
  const double sum = block_sum(own, scratch);
  if (threadIdx.x == 0) partial[blockIdx.x] = range.counts ? sum : sum - sum;
}

// One block. The squares of floats do not overflow in double, so the sum is finite if the elements are.
__global__ void add_partial_sums(const double* partial, std::int64_t count, double* terms) {
  wait_for_previous();
  __shared__ double scratch[kWarp];
  double sum = 0;
#pragma unroll 8
  for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) sum += partial[i];
  sum = block_sum(sum, scratch);
  if (threadIdx.x > 0) return;
  terms[0] = sum;
  terms[1] = isfinite(sum) ? 0 : 1;
}

__device__ void update(const AdamStep& step, float decay, float gradient, float& main, float& exp_avg,
                       float& exp_avg_sq) {
  const float g = step.factor * gradient;
  exp_avg = fmaf(step.new_share1, g - exp_avg, exp_avg);
  exp_avg_sq = fmaf(step.new_share2, g * g - exp_avg_sq, exp_avg_sq);
  const float decayed = fmaf(-decay, main, main);
  main = decayed - step.rate * exp_avg / fmaf(step.root_scale, sqrtf(exp_avg_sq), step.eps);
}

template <class T, int kWidth>
__device__ void update_elements(const AdamRange& range, const AdamStep& step, std::int64_t begin, std::int64_t end) {
  const float decay = range.decayed ? step.decay : 0;
  for (std::int64_t i = begin + threadIdx.x * kWidth; i < end; i += kThreads * kWidth) {
    using Floats = Vector<float, kWidth>;
    const Floats gradient = Floats::load(range.gradient + i);
    Floats main = Floats::load(range.main + i);
    Floats exp_avg = Floats::load(range.exp_avg + i), exp_avg_sq = Floats::load(range.exp_avg_sq + i);
    Vector<T, kWidth> parameter;
    for (int k = 0; k < kWidth; ++k) {
      update(step, decay, gradient.values[k], main.values[k], exp_avg.values[k], exp_avg_sq.values[k]);
      parameter.values[k] = from_float<T>(main.values[k]);
    }
    main.store(range.main + i);
    exp_avg.store(range.exp_avg + i);
    exp_avg_sq.store(range.exp_avg_sq + i);
    parameter.store(static_cast<T*>(range.parameter) + i);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) update_pieces(AdamRanges ranges, AdamStep step) {
  wait_for_previous();
  const auto [range, begin, end] = own_piece<kPerUpdateBlock>(ranges, &AdamRange::first_update_block);
  const std::int64_t wide_end = range.aligned ? end - end % kWide : begin;
  update_elements<T, kWide>(range, step, begin, wide_end);
  update_elements<T, 1>(range, step, wide_end, end);
}

}  // namespace

AdamBlocks lay_out_blocks(std::vector<AdamRange>& ranges) {
  AdamBlocks blocks;
  for (AdamRange& range : ranges) {
    const auto aligned = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data) % kVectorBytes == 0; };
    range.aligned = aligned(range.gradient) && aligned(range.main) && aligned(range.exp_avg) &&
                    aligned(range.exp_avg_sq) && aligned(range.parameter);
    range.first_sum_block = blocks.sum;
    range.first_update_block = blocks.update;
    blocks.sum += blocks_for(range.count, kPerSumBlock);
    blocks.update += blocks_for(range.count, kPerUpdateBlock);
  }
  return blocks;
}

void sum_squares(const Tensor& ranges, const AdamBlocks& blocks, const Tensor& terms, const Queue& queue) {
  double* const partial = queue.scratch<double>(blocks.sum);
  launch_kernel(sum_squares_of_pieces, {blocks.sum, kThreads, 0, queue}, AdamRanges(ranges), partial);
  launch_kernel(add_partial_sums, {1, 1024, 0, queue}, partial, blocks.sum, terms);
}

void adam_update(const Tensor& ranges, const AdamBlocks& blocks, const AdamStep& step, bool parameters_are_float,
                 const Queue& queue) {
  const auto kernel = parameters_are_float ? update_pieces<float> : update_pieces<__nv_bfloat16>;
  launch_kernel(kernel, {blocks.update, kThreads, 0, queue}, AdamRanges(ranges), step);
}

}  // namespace braid::kernels
