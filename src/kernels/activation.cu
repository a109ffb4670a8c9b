#include "kernels/device.cuh"
#include "kernels/rows.h"

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

template <class T, class>
using Of = T;

template <class Apply, class... Inputs>
void launch_map(const Queue& queue, const Tensor& y, Apply apply, const Inputs&... inputs) {
  const std::int64_t count = y.elements();
  with_vectors(count, {y.flat(), inputs.flat()...}, [&]<class T, int kWidth>() {
    launch_kernel(map<kWidth, T, Apply, Of<T, Inputs>...>, {blocks_for(count, kThreads * kWidth), kThreads, 0, queue},
                  count, y, apply, inputs...);
  });
}

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

// Activations of rows: a warp has a row, and its lanes take turns at vectors of columns, four at a time.

constexpr int kWarps = 8, kUnrolled = 4;

// Calls load(slot, column) for four vectors of this lane, then use(slot, column) for each: loads overlap. Beyond the
// row it loads the row's last vector, as loads under a condition take more instructions.
template <int kWidth, class Load, class Use>
__device__ void for_columns(int columns, Load load, Use use) {
  const int lane = threadIdx.x % kWarp;
  for (int begin = lane * kWidth; begin < columns; begin += kUnrolled * kWarp * kWidth) {
#pragma unroll
    for (int slot = 0; slot < kUnrolled; ++slot) load(slot, min(begin + slot * kWarp * kWidth, columns - kWidth));
#pragma unroll
    for (int slot = 0; slot < kUnrolled; ++slot)
      if (begin + slot * kWarp * kWidth < columns) use(slot, begin + slot * kWarp * kWidth);
  }
}

__device__ std::int64_t row_of_warp() { return std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; }

// A number for each row: values[places[row]], or values[row] without places.
struct RowScales {
  const float* values;
  const std::int64_t* places;
};

__device__ std::int64_t place_of(const RowScales& scales, std::int64_t row) {
  return scales.places == nullptr ? row : scales.places[row];
}

// Two loads, one after the other: a warp asks for elements of the row before.
__device__ float scale_of(const RowScales& scales, std::int64_t row) { return scales.values[place_of(scales, row)]; }

template <int kWidth, class T>
__global__ void __launch_bounds__(kWarps* kWarp) scaled_forward(Matrix<const T> x, RowScales scales, T* y) {
  wait_for_previous();
  const std::int64_t row = row_of_warp();
  if (row >= x.rows) return;
  float scale = 0;
  Vector<T, kWidth> values[kUnrolled];
  for_columns<kWidth>(
      static_cast<int>(x.columns),
      [&](int slot, int column) { values[slot] = Vector<T, kWidth>::load(x.data + row * x.stride + column); },
      [&](int slot, int column) {
        if (slot == 0) scale = scale_of(scales, row);
        for (T& element : values[slot].values) {
          const float value = to_float(element), positive = value <= 0 ? 0 : value;
          element = from_float<T>(positive * positive * scale);
        }
        values[slot].store(y + row * x.columns + column);
      });
}

template <int kWidth, class T>
__global__ void __launch_bounds__(kWarps* kWarp)
    scaled_backward(Matrix<const T> grad, Matrix<const T> x, RowScales scales, T* x_grad, float* scale_grad) {
  wait_for_previous();
  const std::int64_t row = row_of_warp();
  if (row >= x.rows) return;
  float scale = 0, sum = 0;
  Vector<T, kWidth> values[kUnrolled], slopes[kUnrolled];
  for_columns<kWidth>(
      static_cast<int>(x.columns),
      [&](int slot, int column) {
        values[slot] = Vector<T, kWidth>::load(x.data + row * x.stride + column);
        slopes[slot] = Vector<T, kWidth>::load(grad.data + row * grad.stride + column);
      },
      [&](int slot, int column) {
        if (slot == 0) scale = scale_of(scales, row);
        for (int i = 0; i < kWidth; ++i) {
          const float value = to_float(values[slot].values[i]), positive = value <= 0 ? 0 : value;
          const float slope = positive * to_float(slopes[slot].values[i]);
          sum += slope * positive;
          values[slot].values[i] = from_float<T>(2 * slope * scale);
        }
        if (x_grad) values[slot].store(x_grad + row * x.columns + column);
      });
  sum = warp_sum(sum);
  if (scale_grad && threadIdx.x % kWarp == 0) scale_grad[place_of(scales, row)] = sum;
}

template <int kWidth, class T>
__global__ void __launch_bounds__(kWarps* kWarp) gated_forward(Matrix<const T> x, T* y) {
  wait_for_previous();
  const std::int64_t row = row_of_warp(), width = x.columns / 2;
  if (row >= x.rows) return;
  const T* const gate_row = x.data + row * x.stride;
  Vector<T, kWidth> gate[kUnrolled], up[kUnrolled];
  for_columns<kWidth>(
      static_cast<int>(width),
      [&](int slot, int column) {
        gate[slot] = Vector<T, kWidth>::load(gate_row + column);
        up[slot] = Vector<T, kWidth>::load(gate_row + width + column);
      },
      [&](int slot, int column) {
        for (int i = 0; i < kWidth; ++i) {
          const float value = to_float(gate[slot].values[i]);
          gate[slot].values[i] = from_float<T>(value * sigmoid(value) * to_float(up[slot].values[i]));
        }
        gate[slot].store(y + row * width + column);
      });
}

template <int kWidth, class T>
__global__ void __launch_bounds__(kWarps* kWarp) gated_backward(Matrix<const T> grad, Matrix<const T> x, T* x_grad) {
  wait_for_previous();
  const std::int64_t row = row_of_warp(), width = x.columns / 2;
  if (row >= x.rows) return;
  const T* const gate_row = x.data + row * x.stride;
  Vector<T, kWidth> gate[kUnrolled], up[kUnrolled], slope[kUnrolled];
  for_columns<kWidth>(
      static_cast<int>(width),
      [&](int slot, int column) {
        gate[slot] = Vector<T, kWidth>::load(gate_row + column);
        up[slot] = Vector<T, kWidth>::load(gate_row + width + column);
        slope[slot] = Vector<T, kWidth>::load(grad.data + row * grad.stride + column);
      },
      [&](int slot, int column) {
        for (int i = 0; i < kWidth; ++i) {
          const float value = to_float(gate[slot].values[i]), share = sigmoid(value);
          const float of_output = to_float(slope[slot].values[i]);
          gate[slot].values[i] =
              from_float<T>(of_output * to_float(up[slot].values[i]) * share * (1 + value * (1 - share)));
          up[slot].values[i] = from_float<T>(of_output * value * share);
        }
        gate[slot].store(x_grad + row * x.columns + column);
        up[slot].store(x_grad + row * x.columns + width + column);
      });
}

LaunchShape warp_per_row(const Tensor& x, const Queue& queue) {
  return {blocks_for(x.rows(), kWarps), kWarps * kWarp, 0, queue};
}

}  // namespace

void activation_forward(const Tensor& x, Activation kind, const Tensor& y, const Queue& queue) {
  const auto squared_relu = [] __device__(float v) { return v <= 0 ? 0 : v * v; };
  const auto gelu_erf = [] __device__(float v) { return v * normal_at(v).cumulative; };
  const auto gelu_tanh = [] __device__(float v) { return v * tanh_share(v); };
  const auto quick_gelu = [] __device__(float v) { return v * sigmoid(kQuickGelu * v); };
  if (kind == Activation::SquaredRelu) launch_map(queue, y, squared_relu, x);
  if (kind == Activation::GeluErf) launch_map(queue, y, gelu_erf, x);
  if (kind == Activation::GeluTanh) launch_map(queue, y, gelu_tanh, x);
  if (kind == Activation::QuickGelu) launch_map(queue, y, quick_gelu, x);
}

void activation_backward(const Tensor& grad, const Tensor& x, Activation kind, const Tensor& x_grad,
                         const Queue& queue) {
  const auto squared_relu = [] __device__(float slope, float v) { return v <= 0 ? 0 : 2 * v * slope; };
  const auto gelu_erf = [] __device__(float slope, float v) {
    const Normal normal = normal_at(v);
    return slope * (normal.cumulative + v * normal.density);
  };
  const auto gelu_tanh = [] __device__(float slope, float v) {
    const float share = tanh_share(v), inner_slope = 2 * kRootTwoOverPi * (1 + 3 * kTanhCubic * v * v);
    return slope * share * (1 + v * (1 - share) * inner_slope);
  };
  const auto quick_gelu = [] __device__(float slope, float v) {
    const float share = sigmoid(kQuickGelu * v);
    return slope * share * (1 + kQuickGelu * v * (1 - share));
  };
  if (kind == Activation::SquaredRelu) launch_map(queue, x_grad, squared_relu, grad, x);
  if (kind == Activation::GeluErf) launch_map(queue, x_grad, gelu_erf, grad, x);
  if (kind == Activation::GeluTanh) launch_map(queue, x_grad, gelu_tanh, grad, x);
  if (kind == Activation::QuickGelu) launch_map(queue, x_grad, quick_gelu, grad, x);
}

void scaled_squared_relu_forward(const Tensor& x, const Tensor& scales, const Tensor& places, const Tensor& y,
                                 const Queue& queue) {
  with_vectors(x.columns(), {x}, [&]<class T, int kWidth>() {
    launch_kernel(scaled_forward<kWidth, T>, warp_per_row(x, queue), x, RowScales{scales, places}, y);
  });
}

void scaled_squared_relu_backward(const Tensor& grad, const Tensor& x, const Tensor& scales, const Tensor& places,
                                  const Tensor& x_grad, const Tensor& scale_grad, const Queue& queue) {
  with_vectors(x.columns(), {x, grad}, [&]<class T, int kWidth>() {
    launch_kernel(scaled_backward<kWidth, T>, warp_per_row(x, queue), grad, x, RowScales{scales, places}, x_grad,
                  scale_grad);
  });
}

void swiglu_forward(const Tensor& x, const Tensor& y, const Queue& queue) {
  with_vectors(y.columns(), {x},
               [&]<class T, int kWidth>() { launch_kernel(gated_forward<kWidth, T>, warp_per_row(x, queue), x, y); });
}

void swiglu_backward(const Tensor& grad, const Tensor& x, const Tensor& x_grad, const Queue& queue) {
  with_vectors(grad.columns(), {x, grad}, [&]<class T, int kWidth>() {
    launch_kernel(gated_backward<kWidth, T>, warp_per_row(x, queue), grad, x, x_grad);
  });
}

}  // namespace braid::kernels
