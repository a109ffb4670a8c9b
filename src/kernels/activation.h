#pragma once

#include "kernels/matrix.h"

namespace braid::kernels {

// y = max(x, 0)^2 and its gradient 2 max(x, 0) grad, element by element.
template <class T>
void squared_relu_forward(const T* x, T* y, std::int64_t count, cudaStream_t stream);
template <class T>
void squared_relu_backward(const T* grad, const T* x, T* x_grad, std::int64_t count, cudaStream_t stream);

// x / 2 (1 + erf(x / sqrt(2))); `tanh`: x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
template <class T>
void gelu_forward(const T* x, T* y, std::int64_t count, bool tanh, cudaStream_t stream);
template <class T>
void gelu_backward(const T* grad, const T* x, T* x_grad, std::int64_t count, bool tanh, cudaStream_t stream);

// x sigmoid(1.702 x)
template <class T>
void quick_gelu_forward(const T* x, T* y, std::int64_t count, cudaStream_t stream);
template <class T>
void quick_gelu_backward(const T* grad, const T* x, T* x_grad, std::int64_t count, cudaStream_t stream);

}  // namespace braid::kernels
