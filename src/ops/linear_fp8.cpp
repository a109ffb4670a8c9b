#include "ops/linear_fp8.h"

#include <ATen/TensorOperators.h>

#include "base/error.h"
#include "ops/column_sum.h"

namespace braid {
namespace {

at::Tensor weight_gradient(const Fp8Matrix& grad, const Fp8Matrix& x, const Weight& weight) {
  const auto product_in = [&](at::ScalarType dtype) { return fp8_product(grad, x, dtype, kWeightGradientSum); };
  const auto write = [&](const at::Tensor& sum, bool is_first) {
    at::Tensor matrix = sum.view({sum.size(0), -1});
    if (is_first)
      write_fp8_product(matrix, grad, x, kWeightGradientSum);
    else
      matrix.add_(product_in(sum.scalar_type()));
  };
  return weight.sum->write_by(write) ? at::Tensor() : product_in(weight.value.scalar_type()).view_as(weight.value);
}

}  // namespace

OutputAndSaved<Fp8Matrix> linear_fp8_forward(const at::Tensor& x, const Weight& weight, const at::Tensor& bias,
                                             const LinearNeeds& needs, bool weight_wants_gradient) {
  const Fp8Pair factor = quantize(x, {.rows = true, .columns = weight_wants_gradient});
  const Fp8Pair& matrix = weight.fp8->of(weight.value.flatten(1), {.rows = true, .columns = needs.x_grad});
  const at::Tensor y = fp8_product(factor.rows, matrix.rows, x.scalar_type(), kOutputSum);
  return {bias.defined() ? y + bias : y, factor.columns};
}

Tensors linear_fp8_backward(const at::Tensor& grad, const Fp8Matrix& x_columns, const Weight& weight,
                            const LinearNeeds& needs) {
  const bool has_weight_grad = x_columns.values.defined();
  Tensors grads = {{}, {}, needs.bias_grad ? column_sum(grad) : at::Tensor()};
  if (!needs.x_grad && !has_weight_grad) return grads;
  const Fp8Pair factor = quantize(grad, {.rows = needs.x_grad, .columns = has_weight_grad});
  if (needs.x_grad) {
    const Fp8Pair& matrix = weight.fp8->of(weight.value.flatten(1), {.columns = true});
    grads[0] = fp8_product(factor.rows, matrix.columns, grad.scalar_type(), kInputGradientSum);
  }
  if (has_weight_grad) grads[1] = weight_gradient(factor.columns, x_columns, weight);
  return grads;
}

at::Tensor linear_fp8(const at::Tensor& x, const Weight& weight, const at::Tensor& bias, Result result) {
  BRAID_CHECK_EQ(x.dim(), 2, "x of a linear map is [tokens, features]");
  if (x.size(0) == 0) return linear(x, weight, bias, result);
  const std::int64_t out = weight.value.size(0), in = weight.value.numel() / out;
  BRAID_CHECK_EQ(x.size(1), in, "features of an fp8 product");
  BRAID_CHECK(in % kFp8Multiple == 0 && out % kFp8Multiple == 0,
              "features of an fp8 product are multiples of {}, not {} -> {}", kFp8Multiple, in, out);
  const LinearNeeds needs = {x.requires_grad(), bias.defined() && bias.requires_grad()};
  const bool trains = needs_gradient({weight.value});
  const auto forward = [&]() -> OutputAndSaved<Fp8Matrix> {
    if (result == Result::Needed) return linear_fp8_forward(x, weight, bias, needs, trains);
    return {x.new_empty({x.size(0), out}), trains ? quantize(x, {.columns = true}).columns : Fp8Matrix()};
  };
  return differentiable("LinearFp8Backward", {x, weight.value, bias}, forward,
                        [weight, needs](const at::Tensor& grad, const Fp8Matrix& x_columns) {
                          return linear_fp8_backward(grad, x_columns, weight, needs);
                        });
}

}  // namespace braid
