// Pieces that kernels are made of.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_pipeline.h>
#include <cuda_runtime_api.h>
#include <initializer_list>
#include <map>
#include <mutex>
#include <type_traits>
#include <utility>
#include "kernels/tensor.h"

namespace braid::kernels {

constexpr int kWarp = 32;

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
template <class T>
__device__ T from_float(float x) {
  if constexpr (sizeof(T) == sizeof(float))
    return x;
  else
    return __float2bfloat16_rn(x);
}

// As many elements as one memory instruction moves.
template <class T>
inline constexpr int kVectorWidth = 16 / sizeof(T);

// kWidth elements that are loaded and stored together; memory must be aligned to their size.
template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth) Vector {
  T values[kWidth];

  __device__ static Vector load(const T* from) { return *reinterpret_cast<const Vector*>(from); }
  __device__ void store(T* to) const { *reinterpret_cast<Vector*>(to) = *this; }
};

constexpr std::size_t kVectorBytes = 16;

// Whether rows begin at multiples of so many bytes.
inline bool is_aligned(const Tensor& x, std::size_t bytes = kVectorBytes) {
  const auto fits = [&](std::int64_t stride) {
    return static_cast<std::size_t>(stride * x.element_bytes) % bytes == 0;
  };
  return reinterpret_cast<std::uintptr_t>(x.data) % bytes == 0 &&
         std::all_of(x.strides, x.strides + std::max(x.dims - 1, 0), fits);
}

inline bool are_aligned(std::initializer_list<Tensor> all, std::size_t bytes = kVectorBytes) {
  return std::all_of(all.begin(), all.end(), [&](const Tensor& x) { return is_aligned(x, bytes); });
}

// call.operator()<T>() with the type of x's elements.
template <class Call>
void with_type(const Tensor& x, const Call& call) {
  x.is_float ? call.template operator()<float>() : call.template operator()<__nv_bfloat16>();
}

// call.operator()<T, kWidth>() with the type of the tensors, and how many elements a thread moves at once: 1 unless all
// rows are aligned and have a whole number of vectors.
template <class Call>
void with_vectors(std::int64_t columns, std::initializer_list<Tensor> tensors, const Call& call) {
  with_type(*tensors.begin(), [&]<class T>() {
    if (are_aligned(tensors) && columns % kVectorWidth<T> == 0)
      call.template operator()<T, kVectorWidth<T>>();
    else
      call.template operator()<T, 1>();
  });
}

// 2^x and e^x, good to about 1e-6, relatively. They flush subnormal numbers to zero, which __expf avoids by more
// instructions.
__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
constexpr float kLog2OfE = 1.4426950408889634f;
__device__ inline float fast_exp(float x) { return fast_exp2(x * kLog2OfE); }

// By the fast reciprocal, too.
__device__ inline float sigmoid(float x) {
  float share;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(share) : "f"(1 + fast_exp2(x * -kLog2OfE)));
  return share;
}

template <class T>
__device__ T warp_sum(T x) {
  for (int lane = kWarp / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(~0u, x, lane);
  return x;
}

// The sum over all threads of a block, in each of them. `scratch` has an element per warp; a block may use it again
// only after a __syncthreads().
template <class T>
__device__ T block_sum(T x, T* scratch) {
  x = warp_sum(x);
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = x;
  __syncthreads();
  const int warps = (blockDim.x + kWarp - 1) / kWarp, lane = threadIdx.x % kWarp;
  return warp_sum(lane < warps ? scratch[lane] : T{0});
}

// A barrier of `threads` threads of a block; ids 1 to 15 are free.
__device__ inline void wait_for_threads(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Of the current device.
inline int multiprocessors() {
  int device = 0, count = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

// Of the first device that was used: all of a process are alike.
inline bool can_launch_early() {
  static const bool can = compute_capability().major >= 9;
  return can;
}

// Sets a kernel's limit of dynamic shared memory, which it has on each GPU. The limit is only raised, so that launches
// of several threads do not disturb each other.
inline void allow_shared_memory(const void* kernel, std::size_t bytes) {
  if (bytes == 0) return;
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, std::size_t> limits;
  int device = 0;
  cudaGetDevice(&device);
  const std::lock_guard lock(mutex);
  std::size_t& limit = limits[{kernel, device}];
  if (bytes <= limit) return;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  limit = bytes;
}

// Waits until all earlier kernels of the stream have finished and their writes are visible. First it lets the next
// kernel start, which then waits for this one. cmake/Kernels.cmake makes sure that a GPU that starts kernels early runs
// code that waits.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
#endif
}

// Where a kernel runs, and on how many threads. Without any nothing is launched.
struct LaunchShape {
  dim3 blocks, threads;
  std::size_t shared_bytes;
  cudaStream_t stream;
  unsigned cluster = 1;
};

// Programmatic dependent launch: the kernel may start while the kernel before it in the stream ends, which hides its
// launch. So it must call wait_for_previous() before it touches global memory. Its pointers must not be __restrict__:
// the compiler may load through such pointers to constants before the wait.
template <class... Parameters, class... Arguments>
void launch_kernel(void (*kernel)(Parameters...), const LaunchShape& shape, const Arguments&... arguments) {
  if (shape.blocks.x == 0 || shape.blocks.y == 0 || shape.blocks.z == 0 || shape.threads.x == 0) return;
  allow_shared_memory(reinterpret_cast<const void*>(kernel), shape.shared_bytes);
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {shape.blocks, shape.threads, shape.shared_bytes, shape.stream, attributes, 0};
  if (can_launch_early()) {
    cudaLaunchAttribute& early = attributes[config.numAttrs++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {shape.cluster, 1, 1};
  }
  cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

constexpr std::int64_t blocks_for(std::int64_t items, std::int64_t per_block) {
  return (items + per_block - 1) / per_block;
}

// Rounds two bf16 numbers with one instruction.
template <class T, int kWidth>
__device__ Vector<T, kWidth> pack(const float (&values)[kWidth]) {
  Vector<T, kWidth> packed;
  if constexpr (sizeof(T) == 2 && kWidth % 2 == 0)
    for (int i = 0; i < kWidth; i += 2)
      reinterpret_cast<__nv_bfloat162*>(packed.values)[i / 2] = __floats2bfloat162_rn(values[i], values[i + 1]);
  else
    for (int i = 0; i < kWidth; ++i) packed.values[i] = from_float<T>(values[i]);
  return packed;
}

// The compiler takes the values for new ones: it computes again what it would keep in registers.
template <class T, int kWidth>
__device__ void forget(Vector<T, kWidth>& vector) {
  if constexpr (sizeof(vector) % 4 == 0)
    for (int i = 0; i < static_cast<int>(sizeof(vector)) / 4; ++i)
      asm volatile("" : "+r"(reinterpret_cast<unsigned*>(&vector)[i]));
}

// Copies to shared memory that run ahead of their use.
//
// Runs copy(i, stage), then use(i, stage), for i = 0, ..., count - 1; copies run kStages - 1 turns ahead. A use of what
// other threads copied begins and ends with a barrier.
template <int kStages, class Copy, class Use>
__device__ void pipeline(std::int64_t count, const Copy& copy, const Use& use) {
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < count) copy(i, i);
    __pipeline_commit();
  }
  int stage = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (const std::int64_t ahead = i + kStages - 1; ahead < count) copy(ahead, stage == 0 ? kStages - 1 : stage - 1);
    __pipeline_commit();
    __pipeline_wait_prior(kStages - 1);
    use(i, stage);
    stage = stage + 1 < kStages ? stage + 1 : 0;
  }
}

__device__ inline float value_at(const Parameter& parameter, std::int64_t i) {
  return parameter.is_float ? static_cast<const float*>(parameter.data)[i]
                            : to_float(static_cast<const __nv_bfloat16*>(parameter.data)[i]);
}

__device__ inline void set_value(const Parameter& parameter, std::int64_t i, float value) {
  if (parameter.is_float)
    static_cast<float*>(parameter.data)[i] = value;
  else
    static_cast<__nv_bfloat16*>(parameter.data)[i] = from_float<__nv_bfloat16>(value);
}

constexpr int kSumColumns = 32, kSumSlices = 16;

// store(column, sum over the rows of partials[rows, columns]). A block has 32 columns and 16 slices of the rows; each
// thread adds every 16th row, then the first slice adds the sums of all. The order is always the same.
template <class Store>
__global__ void __launch_bounds__(kSumColumns* kSumSlices)
    sum_partial_rows(const float* partials, std::int64_t rows, std::int64_t columns, Store store) {
  wait_for_previous();
  __shared__ float sums[kSumSlices][kSumColumns];
  const int lane = threadIdx.x % kSumColumns, slice = threadIdx.x / kSumColumns;
  const std::int64_t column = std::int64_t{blockIdx.x} * kSumColumns + lane;
  float sum = 0;
  if (column < columns) {
#pragma unroll 8
    for (std::int64_t row = slice; row < rows; row += kSumSlices) sum += partials[row * columns + column];
  }
  sums[slice][lane] = sum;
  __syncthreads();
  if (slice > 0 || column >= columns) return;
  for (int other = 1; other < kSumSlices; ++other) sum += sums[other][lane];
  store(column, sum);
}

template <class Store>
void launch_sum_partial_rows(const float* partials, std::int64_t rows, std::int64_t columns, cudaStream_t stream,
                             Store store) {
  launch_kernel(sum_partial_rows<Store>, {blocks_for(columns, kSumColumns), kSumColumns * kSumSlices, 0, stream},
                partials, rows, columns, store);
}

}  // namespace braid::kernels
