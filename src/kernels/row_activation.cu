// A warp has a row; its lanes take turns at vectors of columns, four at a time.
#include "kernels/device.cuh"
#include "kernels/row_activation.h"

namespace braid::kernels {
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

#define BRAID_ROW_ACTIVATIONS(T)                                                                             \
  template void scaled_squared_relu_forward(Matrix<const T>, const RowScales&, T*, cudaStream_t);            \
  template void scaled_squared_relu_backward(Matrix<const T>, Matrix<const T>, const RowScales&, T*, float*, \
                                             cudaStream_t);                                                  \
  template void swiglu_forward(Matrix<const T>, T*, cudaStream_t);                                           \
  template void swiglu_backward(Matrix<const T>, Matrix<const T>, T*, cudaStream_t);
BRAID_ROW_ACTIVATIONS(float)
BRAID_ROW_ACTIVATIONS(__nv_bfloat16)
#undef BRAID_ROW_ACTIVATIONS

}  // namespace braid::kernels
