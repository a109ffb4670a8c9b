// RMS and layer norms of rows, optionally of a sum of two matrices. Without a bias a norm is an RMS norm:
//   s = x + branch + branch_bias, rounded to T;  y = s / sqrt(mean(s^2) + eps) * weight
// with one it is a layer norm:
//   y = (s - mean(s)) / sqrt(mean((s - mean(s))^2) + eps) * weight + bias
#pragma once

#include "kernels/matrix.h"

namespace braid::kernels {

constexpr std::int64_t kWidestNorm = 8192;  // columns

template <class T>
struct NormForward {
  Matrix<const T> x;
  Matrix<const T> branch{};        // may have no data: s = x
  const T* branch_bias = nullptr;  // may be null
  const T* weight = nullptr;
  const T* bias = nullptr;
  float eps = 0;
  T* sum = nullptr;               // s, dense; with a branch
  T* y = nullptr;                 // dense
  float* mean = nullptr;          // [rows], with a bias
  float* inverse_root = nullptr;  // [rows]
};
template <class T>
void norm_forward(const NormForward<T>& norm, cudaStream_t stream);

// The gradient of s, to which `sum_grad`, that of the output `sum`, is added; it is also that of x and of branch.
template <class T>
struct NormBackward {
  Matrix<const T> grad;        // of y
  Matrix<const T> sum_grad{};  // may have no data
  Matrix<const T> s;
  const T* weight = nullptr;
  bool is_layer_norm = false;
  const float* mean = nullptr;  // of a layer norm; it has no data if there are no rows
  const float* inverse_root = nullptr;
  T* s_grad = nullptr;           // dense
  bool sums_s_grad = false;      // of a layer norm
  T* parameter_grads = nullptr;  // [columns] of the weight; of a layer norm, as many of the bias; if wanted, the column
                                 // sums of s_grad: the gradient of a bias that the branch's rows share
  float* partials = nullptr;     // norm_partials() x as many
};
std::int64_t norm_partials(std::int64_t rows, std::int64_t columns);
template <class T>
void norm_backward(const NormBackward<T>& norm, cudaStream_t stream);

}  // namespace braid::kernels
