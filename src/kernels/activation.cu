#include "kernels/activation.h"
#include "kernels/device.cuh"

namespace braid::kernels {
namespace {

constexpr int kThreads = 256;

// y[i] = apply(inputs[i]...)
template <int kWidth, class T, class Apply, class... Inputs>
__global__ void __launch_bounds__(kThreads) map(std::int64_t count, T* y, Apply apply, const Inputs*... inputs) {
  const std::int64_t begin = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kWidth;
  if (begin >= count) return;
  Vector<T, kWidth> result;
  const auto fill = [&](const auto&... vectors) {
    for (int i = 0; i < kWidth; ++i) result.values[i] = from_float<T>(apply(to_float(vectors.values[i])...));
  };
  fill(Vector<T, kWidth>::load(inputs + begin)...);
  result.store(y + begin);
}

template <class T, class Apply, class... Inputs>
void launch_map(std::int64_t count, T* y, cudaStream_t stream, Apply apply, const Inputs*... inputs) {
  if (count == 0) return;
  constexpr int kWidth = kVectorWidth<T>;
  const bool aligned = is_aligned(y, count) && (is_aligned(inputs, count) && ...);
  if (aligned)
    map<kWidth><<<blocks_for(count, kThreads * kWidth), kThreads, 0, stream>>>(count, y, apply, inputs...);
  else
    map<1><<<blocks_for(count, kThreads), kThreads, 0, stream>>>(count, y, apply, inputs...);
}

}  // namespace

template <class T>
void squared_relu_forward(const T* x, T* y, std::int64_t count, cudaStream_t stream) {
  launch_map(
      count, y, stream, [] __device__(float value) { return value <= 0 ? 0 : value * value; }, x);
}

template <class T>
void squared_relu_backward(const T* grad, const T* x, T* x_grad, std::int64_t count, cudaStream_t stream) {
  const auto apply = [] __device__(float slope, float value) { return value <= 0 ? 0 : 2 * value * slope; };
  launch_map(count, x_grad, stream, apply, grad, x);
}

template void squared_relu_forward(const float*, float*, std::int64_t, cudaStream_t);
template void squared_relu_forward(const __nv_bfloat16*, __nv_bfloat16*, std::int64_t, cudaStream_t);
template void squared_relu_backward(const float*, const float*, float*, std::int64_t, cudaStream_t);
template void squared_relu_backward(const __nv_bfloat16*, const __nv_bfloat16*, __nv_bfloat16*, std::int64_t,
                                    cudaStream_t);

}  // namespace braid::kernels
