// Activations: functions of one element, and those that treat the columns of a row together.
#pragma once

#include "kernels/matrix.h"

namespace braid::kernels {

// The functions of ops/activation.h, in its order, and their gradients; element by element.
enum class Activation { SquaredRelu, GeluErf, GeluTanh, QuickGelu };
template <class T>
void activation_forward(const T* x, T* y, std::int64_t count, Activation kind, cudaStream_t stream);
template <class T>
void activation_backward(const T* grad, const T* x, T* x_grad, std::int64_t count, Activation kind,
                         cudaStream_t stream);

// A number for each row: values[places[row]], or values[row] without places.
struct RowScales {
  const float* values = nullptr;
  const std::int64_t* places = nullptr;
};

// y = max(x, 0)^2 * scale; y is dense.
template <class T>
void scaled_squared_relu_forward(Matrix<const T> x, const RowScales& scales, T* y, cudaStream_t stream);
// x_grad = 2 max(x, 0) grad scale, dense; the row's sum of max(x, 0)^2 grad goes to its scale's place in scale_grad.
// Either may be null.
template <class T>
void scaled_squared_relu_backward(Matrix<const T> grad, Matrix<const T> x, const RowScales& scales, T* x_grad,
                                  float* scale_grad, cudaStream_t stream);

// y = gate sigmoid(gate) up, with x = gate | up; y and x_grad are dense.
template <class T>
void swiglu_forward(Matrix<const T> x, T* y, cudaStream_t stream);
template <class T>
void swiglu_backward(Matrix<const T> grad, Matrix<const T> x, T* x_grad, cudaStream_t stream);

}  // namespace braid::kernels
