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
  with_vector_width<T>(is_aligned(y, count) && (is_aligned(inputs, count) && ...), count, [&](auto width) {
    launch_kernel(map<width(), T, Apply, Inputs...>, {blocks_for(count, kThreads * width), kThreads, 0, stream}, count,
                  y, apply, inputs...);
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

}  // namespace

template <class T>
void activation_forward(const T* x, T* y, std::int64_t count, Activation kind, cudaStream_t stream) {
  const auto squared_relu = [] __device__(float v) { return v <= 0 ? 0 : v * v; };
  const auto gelu_erf = [] __device__(float v) { return v * normal_at(v).cumulative; };
  const auto gelu_tanh = [] __device__(float v) { return v * tanh_share(v); };
  const auto quick_gelu = [] __device__(float v) { return v * sigmoid(kQuickGelu * v); };
  switch (kind) {
    case Activation::SquaredRelu:
      return launch_map(count, y, stream, squared_relu, x);
    case Activation::GeluErf:
      return launch_map(count, y, stream, gelu_erf, x);
    case Activation::GeluTanh:
      return launch_map(count, y, stream, gelu_tanh, x);
    case Activation::QuickGelu:
      return launch_map(count, y, stream, quick_gelu, x);
  }
}

template <class T>
void activation_backward(const T* grad, const T* x, T* x_grad, std::int64_t count, Activation kind,
                         cudaStream_t stream) {
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
  switch (kind) {
    case Activation::SquaredRelu:
      return launch_map(count, x_grad, stream, squared_relu, grad, x);
    case Activation::GeluErf:
      return launch_map(count, x_grad, stream, gelu_erf, grad, x);
    case Activation::GeluTanh:
      return launch_map(count, x_grad, stream, gelu_tanh, grad, x);
    case Activation::QuickGelu:
      return launch_map(count, x_grad, stream, quick_gelu, grad, x);
  }
}

// Activations of rows: a warp has a row, and its lanes take turns at vectors of columns, four at a time.
namespace {

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

}  // namespace

template <class T>
void scaled_squared_relu_forward(Matrix<const T> x, const RowScales& scales, T* y, cudaStream_t stream) {
  if (x.rows == 0) return;
  with_vector_width<T>(is_aligned(x), x.columns, [&](auto width) {
    launch_kernel(scaled_forward<width(), T>, {blocks_for(x.rows, kWarps), kWarps * kWarp, 0, stream}, x, scales, y);
  });
}

template <class T>
void scaled_squared_relu_backward(Matrix<const T> grad, Matrix<const T> x, const RowScales& scales, T* x_grad,
                                  float* scale_grad, cudaStream_t stream) {
  if (x.rows == 0) return;
  with_vector_width<T>(is_aligned(x) && is_aligned(grad), x.columns, [&](auto width) {
    launch_kernel(scaled_backward<width(), T>, {blocks_for(x.rows, kWarps), kWarps * kWarp, 0, stream}, grad, x, scales,
                  x_grad, scale_grad);
  });
}

template <class T>
void swiglu_forward(Matrix<const T> x, T* y, cudaStream_t stream) {
  if (x.rows == 0) return;
  with_vector_width<T>(is_aligned(x), x.columns / 2, [&](auto width) {
    launch_kernel(gated_forward<width(), T>, {blocks_for(x.rows, kWarps), kWarps * kWarp, 0, stream}, x, y);
  });
}

template <class T>
void swiglu_backward(Matrix<const T> grad, Matrix<const T> x, T* x_grad, cudaStream_t stream) {
  if (x.rows == 0) return;
  with_vector_width<T>(is_aligned(x) && is_aligned(grad), x.columns / 2, [&](auto width) {
    launch_kernel(gated_backward<width(), T>, {blocks_for(x.rows, kWarps), kWarps * kWarp, 0, stream}, grad, x, x_grad);
  });
}

#define BRAID_ACTIVATIONS(T)                                                                                 \
  template void activation_forward(const T*, T*, std::int64_t, Activation, cudaStream_t);                    \
  template void activation_backward(const T*, const T*, T*, std::int64_t, Activation, cudaStream_t);         \
  template void scaled_squared_relu_forward(Matrix<const T>, const RowScales&, T*, cudaStream_t);            \
  template void scaled_squared_relu_backward(Matrix<const T>, Matrix<const T>, const RowScales&, T*, float*, \
                                             cudaStream_t);                                                  \
  template void swiglu_forward(Matrix<const T>, T*, cudaStream_t);                                           \
  template void swiglu_backward(Matrix<const T>, Matrix<const T>, T*, cudaStream_t);
BRAID_ACTIVATIONS(float)
BRAID_ACTIVATIONS(__nv_bfloat16)
#undef BRAID_ACTIVATIONS

}  // namespace braid::kernels
