#pragma once

#include "ops/linear.h"
#include "ops/quantize.h"

namespace braid {

// linear() with both factors of its three products in fp8: x and the gradient by token in the products with the weight,
// by feature in the weight's gradient; the weight by its outputs forward and by its inputs backward. Features are
// multiples of 16. Without tokens it is linear() itself.
at::Tensor linear_fp8(const at::Tensor& x, const Weight& weight, const at::Tensor& bias,
                      Result result = Result::Needed);

// Saved: the columns of x if the weight requires a gradient.
OutputAndSaved<Fp8Matrix> linear_fp8_forward(const at::Tensor& x, const Weight& weight, const at::Tensor& bias,
                                             const LinearNeeds& needs, bool weight_wants_gradient);
// As linear_backward.
Tensors linear_fp8_backward(const at::Tensor& grad, const Fp8Matrix& x_columns, const Weight& weight,
                            const LinearNeeds& needs);

}  // namespace braid
