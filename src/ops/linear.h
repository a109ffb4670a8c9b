// Matrix products, and linear maps in the dtype of their weights or in fp8, alone or with a GELU.
#pragma once

#include "ops/activation.h"
#include "ops/quantize.h"
#include "tensor/autograd.h"
#include "tensor/weight.h"

namespace braid {

// a b, plus the bias in every row.   a: [M, K], b: [K, N], each stored by rows or by columns; bias: [N] or undefined
at::Tensor product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias = {});

// The products of several a with the same b, into `result` if it is given. Both may be rows of larger tensors.
// a: [G, M, K] -> [G, M, N]
at::Tensor products(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias = {}, at::Tensor result = {});

// The product and its GELU, in one pass over memory where cuBLAS can: it takes the GELU before it rounds its argument.
struct ProductAndGelu {
  at::Tensor inner, activated;  // a b + bias; gelu(inner)
};
ProductAndGelu product_with_gelu(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias, Activation form);
// a b gelu'(inner), element by element: the gradient of `inner` if a b is that of gelu(inner).   inner: [M, N]
at::Tensor product_times_gelu_slope(const at::Tensor& a, const at::Tensor& b, const at::Tensor& inner, Activation form);

// sum += a b, or sum = a b if it is the first; in the precision of the sum and without a temporary of its size.
void add_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, bool is_first);

// The sum over rows, in fp32 or wider, rounded once: the gradient of a bias.   x: [T, F] -> [F]
at::Tensor column_sum(const at::Tensor& x);

// x times weight^T, plus bias. All dimensions of a weight after the first are input features: those of a patch
// embedding are [channels, height, width].   x: [T, In], weight: [Out, In...], bias: [Out] or undefined -> [T, Out]
// A weight with copies in fp8 is multiplied by linear_fp8().
at::Tensor linear(const Recomputable& x, const Weight& weight, const at::Tensor& bias, Result result = Result::Needed);

struct LinearNeeds {
  bool x_grad = false, bias_grad = false;
};
// Gradients of x, weight and bias, undefined where not needed. The weight's is undefined too if it was added to the
// weight's sum. Saved: x if the weight requires a gradient, else undefined.
Tensors linear_backward(const at::Tensor& grad, const at::Tensor& x, const Weight& weight, const LinearNeeds& needs);

// sum += grad^T x, or sum = grad^T x if it is the first; in the precision of the sum and without a temporary of its
// size. grad: [T, Out], x: [T, In], sum: [Out, In...]
void add_weight_gradient(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& sum, bool is_first = false);

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

// linear(x, weight, bias) and its GELU. The GELU output carries no gradient; linear_of_gelu() computes it for `inner`.
struct LinearAndGelu {
  at::Tensor inner, activated;
};
LinearAndGelu linear_with_gelu(const Recomputable& x, const Weight& weight, const at::Tensor& bias, Activation form);

// linear(gelu(inner), weight, bias), with the gradient of `inner`. activated: gelu(inner)
at::Tensor linear_of_gelu(const at::Tensor& inner, const Recomputable& activated, Activation form, const Weight& weight,
                          const at::Tensor& bias, Result result = Result::Needed);

}  // namespace braid
