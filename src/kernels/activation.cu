#include "kernels/activation.h"
#include "kernels/device.cuh"

namespace braid::kernels {
namespace {

constexpr int kThreads = 256;

// y[i] = apply(inputs[i]...)
template <int kWidth, class T, class Apply, class... Inputs>
__global__ void __launch_bounds__(kThreads) map(std::int64_t count, T* y, Apply apply, const Inputs*... inputs) {
  wait_for_previous();
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
    launch_kernel(map<kWidth, T, Apply, Inputs...>, {blocks_for(count, kThreads * kWidth), kThreads, 0, stream}, count,
                  y, apply, inputs...);
  else
    launch_kernel(map<1, T, Apply, Inputs...>, {blocks_for(count, kThreads), kThreads, 0, stream}, count, y, apply,
                  inputs...);
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

constexpr float kRootTwoOverPi = 0.79788456f;  // sqrt(2 / pi)
constexpr float kTanhCubic = 0.044715f, kQuickGelu = 1.702f;

// The standard normal distribution at x, by formula 7.1.26 of Abramowitz and Stegun (Handbook of Mathematical
// Functions), whose error in the cumulative distribution is below 1e-7. It costs half of erff() and expf().
struct Normal {
  float cumulative, density;
};
__device__ Normal normal_at(float x) {
  const float z = fabsf(x) * 0.70710678f, t = __fdividef(1, 1 + 0.3275911f * z), bell = __expf(-z * z);
  const float polynomial =
      t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
  const float tail = polynomial * bell / 2;
  return {x < 0 ? tail : 1 - tail, 0.39894228f * bell};
}

// (1 + tanh(u)) / 2 with the argument u of that form of GELU.
__device__ float tanh_share(float x) { return sigmoid(2 * kRootTwoOverPi * (x + kTanhCubic * x * x * x)); }

}  // namespace

template <class T>
void gelu_forward(const T* x, T* y, std::int64_t count, bool tanh, cudaStream_t stream) {
  if (tanh)
    launch_map(
        count, y, stream, [] __device__(float v) { return v * tanh_share(v); }, x);
  else
    launch_map(
        count, y, stream, [] __device__(float v) { return v * normal_at(v).cumulative; }, x);
}

template <class T>
void gelu_backward(const T* grad, const T* x, T* x_grad, std::int64_t count, bool tanh, cudaStream_t stream) {
  const auto by_tanh = [] __device__(float slope, float v) {
    const float share = tanh_share(v), inner_slope = 2 * kRootTwoOverPi * (1 + 3 * kTanhCubic * v * v);
    return slope * share * (1 + v * (1 - share) * inner_slope);
  };
  const auto by_erf = [] __device__(float slope, float v) {
    const Normal normal = normal_at(v);
    return slope * (normal.cumulative + v * normal.density);
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
