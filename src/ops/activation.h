// Activations. Each saves only its inputs.
#pragma once

#include "kernels/rows.h"
#include "tensor/autograd.h"

namespace braid {

using kernels::Activation;
at::Tensor activation(const at::Tensor& x, Activation kind);
at::Tensor activation_forward(const at::Tensor& x, Activation kind);
at::Tensor activation_backward(const at::Tensor& grad, const at::Tensor& x, Activation kind);

inline at::Tensor squared_relu(const at::Tensor& x) { return activation(x, Activation::SquaredRelu); }

// max(x, 0)^2 * scale, one scale per row; the product is taken in the wider of the two dtypes, the result has x's.
// `places` ([R] int64, a permutation): row r has the scale of this index; undefined: of index r.
// x: [R, F], scale: R elements of any shape
at::Tensor scaled_squared_relu(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& places = {});
at::Tensor scaled_squared_relu_forward(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& places = {});
struct ScaledNeeds {
  bool x_grad = false, scale_grad = false;
};
// Gradients of x and scale, undefined where not needed.
Tensors scaled_squared_relu_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& scale,
                                     const ScaledNeeds& needs, const at::Tensor& places = {});

// gate * sigmoid(gate) * up, with the two halves of a row.   x: [T, gate | up] = [T, 2 F] -> [T, F]
at::Tensor swiglu(const at::Tensor& x);
at::Tensor swiglu_forward(const at::Tensor& x);
at::Tensor swiglu_backward(const at::Tensor& grad, const at::Tensor& x);

}  // namespace braid
