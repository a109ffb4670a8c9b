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

namespace {

constexpr float kHalfRoot = 0.70710678f;             // sqrt(1 / 2)
constexpr float kRootTwoOverPi = 0.79788456f;        // sqrt(2 / pi)
constexpr float kNormalDensityAtZero = 0.39894228f;  // 1 / sqrt(2 pi)
constexpr float kTanhCubic = 0.044715f, kQuickGelu = 1.702f;

// The argument of tanh in that form of GELU.
__device__ float tanh_inner(float x) { return kRootTwoOverPi * (x + kTanhCubic * x * x * x); }
__device__ float sigmoid(float x) { return 1 / (1 + expf(-x)); }

}  // namespace

template <class T>
void gelu_forward(const T* x, T* y, std::int64_t count, bool tanh, cudaStream_t stream) {
  if (tanh)
    launch_map(
        count, y, stream, [] __device__(float v) { return v / 2 * (1 + tanhf(tanh_inner(v))); }, x);
  else
    launch_map(
        count, y, stream, [] __device__(float v) { return v / 2 * (1 + erff(v * kHalfRoot)); }, x);
}

template <class T>
void gelu_backward(const T* grad, const T* x, T* x_grad, std::int64_t count, bool tanh, cudaStream_t stream) {
  const auto by_tanh = [] __device__(float slope, float v) {
    const float t = tanhf(tanh_inner(v)), inner_slope = kRootTwoOverPi * (1 + 3 * kTanhCubic * v * v);
    return slope / 2 * (1 + t + v * (1 - t * t) * inner_slope);
  };
  const auto by_erf = [] __device__(float slope, float v) {
    return slope * ((1 + erff(v * kHalfRoot)) / 2 + v * kNormalDensityAtZero * expf(-v * v / 2));
  };
  if (tanh)
    launch_map(count, x_grad, stream, by_tanh, grad, x);
  else
    launch_map(count, x_grad, stream, by_erf, grad, x);
}

template <class T>
void quick_gelu_forward(const T* x, T* y, std::int64_t count, cudaStream_t stream) {
  launch_map(
      count, y, stream, [] __device__(float v) { return v * sigmoid(kQuickGelu * v); }, x);
}

template <class T>
void quick_gelu_backward(const T* grad, const T* x, T* x_grad, std::int64_t count, cudaStream_t stream) {
  const auto apply = [] __device__(float slope, float v) {
    const float share = sigmoid(kQuickGelu * v);
    return slope * share * (1 + kQuickGelu * v * (1 - share));
  };
  launch_map(count, x_grad, stream, apply, grad, x);
}

#define BRAID_ACTIVATIONS(T)                                                               \
  template void squared_relu_forward(const T*, T*, std::int64_t, cudaStream_t);            \
  template void squared_relu_backward(const T*, const T*, T*, std::int64_t, cudaStream_t); \
  template void gelu_forward(const T*, T*, std::int64_t, bool, cudaStream_t);              \
  template void gelu_backward(const T*, const T*, T*, std::int64_t, bool, cudaStream_t);   \
  template void quick_gelu_forward(const T*, T*, std::int64_t, cudaStream_t);              \
  template void quick_gelu_backward(const T*, const T*, T*, std::int64_t, cudaStream_t);
BRAID_ACTIVATIONS(float)
BRAID_ACTIVATIONS(__nv_bfloat16)
#undef BRAID_ACTIVATIONS

}  // namespace braid::kernels
