#include "ops/linear.h"
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include "base/error.h"
#include "kernels/cublas_product.h"
#include "ops/has_kernel.h"

namespace braid {
namespace {

bool is_by_rows(const at::Tensor& x) { return x.stride(1) == 1; }

bool is_aligned(const at::Tensor& x) {
  return reinterpret_cast<std::uintptr_t>(x.data_ptr()) % kernels::kLeastAlignment == 0;
}

bool is_factor(const at::Tensor& x) {
  if (x.dim() != 2 || x.numel() == 0 || (x.stride(0) != 1 && x.stride(1) != 1)) return false;
  const std::int64_t stride = is_by_rows(x) ? x.stride(0) : x.stride(1);
  return stride % 8 == 0 && stride >= x.size(is_by_rows(x) ? 1 : 0) && is_aligned(x);
}

// Whether Braid calls cuBLAS itself for these: bf16, in a GPU's memory, not empty, rows or columns contiguous and
// aligned.
bool has_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  return has_kernel({a, b, bias}) && a.scalar_type() == at::kBFloat16 && is_factor(a) && is_factor(b) &&
         b.size(1) % 8 == 0 && (!bias.defined() || (bias.is_contiguous() && is_aligned(bias)));
}

bool takes_products(const at::Tensor& x) {
  return (x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kFloat) && x.is_contiguous() && is_aligned(x);
}

at::Tensor empty_product(const at::Tensor& a, const at::Tensor& b) { return a.new_empty({a.size(0), b.size(1)}); }

struct Factors {
  const at::Tensor &a, &b;
  at::Tensor bias{}, aux{};
  kernels::Gelu gelu = kernels::Gelu::None;
  bool add = false;
};

// False, and nothing is done, if cuBLAS cannot do it.
bool multiply(const Factors& factors, const at::Tensor& result) {
  const kernels::Product product = {.left = kernel_tensor(factors.a),
                                    .right = kernel_tensor(factors.b),
                                    .bias = kernel_tensor(factors.bias),
                                    .result = kernel_tensor(result),
                                    .add = factors.add,
                                    .gelu = factors.gelu,
                                    .aux = kernel_tensor(factors.aux)};
  return call_on<kernels::cublas_multiply>(result.device(), product);
}

// x times weight^T, or memory for it if the result is not needed.
at::Tensor forward(const at::Tensor& x, const Weight& weight, const at::Tensor& bias, Result result) {
  return result == Result::Needed ? product(x, weight.value.flatten(1).t(), bias)
                                  : x.new_empty({x.size(0), weight.value.size(0)});
}

LinearNeeds needs_of(const at::Tensor& x, const at::Tensor& bias) {
  BRAID_CHECK_EQ(x.dim(), 2, "x of a linear map is [tokens, features]");
  return {x.requires_grad(), bias.defined() && bias.requires_grad()};
}

at::Tensor weight_gradient(const at::Tensor& grad, const at::Tensor& x, const Weight& weight) {
  const auto write = [&](const at::Tensor& sum, bool is_first) { add_weight_gradient(grad, x, sum, is_first); };
  if (weight.sum->write_by(write)) return {};
  return product(grad.t(), x).view(weight.value.sizes());
}

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

at::Tensor product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  if (has_product(a, b, bias))
    if (const at::Tensor result = empty_product(a, b); multiply({a, b, bias}, result)) return result;
  return bias.defined() ? at::addmm(bias, a, b) : at::mm(a, b);
}

at::Tensor products(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias, at::Tensor result) {
  const std::int64_t count = a.size(0), rows = a.size(1), columns = b.size(1);
  if (!result.defined() && a.is_contiguous()) return product(a.flatten(0, 1), b, bias).view({count, rows, columns});
  if (!result.defined()) result = at::empty({count, rows, columns}, a.options().requires_grad(false));
  const at::Tensor same = b.expand({count, b.size(0), columns});
  return bias.defined() ? at::baddbmm_out(result, bias.expand({count, rows, columns}), a, same)
                        : at::bmm_out(result, a, same);
}

ProductAndGelu product_with_gelu(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias, Activation form) {
  if (form == Activation::GeluTanh && has_product(a, b, bias)) {
    const at::Tensor inner = empty_product(a, b), activated = empty_product(a, b);
    if (multiply({a, b, bias, inner, kernels::Gelu::Forward}, activated)) return {inner, activated};
  }
  const at::Tensor inner = product(a, b, bias);
  return {inner, activation_forward(inner, form)};
}

at::Tensor product_times_gelu_slope(const at::Tensor& a, const at::Tensor& b, const at::Tensor& inner,
                                    Activation form) {
  if (form == Activation::GeluTanh && has_product(a, b, {}) && takes_products(inner))
    if (const at::Tensor result = empty_product(a, b); multiply({a, b, {}, inner, kernels::Gelu::Backward}, result))
      return result;
  return activation_backward(product(a, b), inner, form);
}

void add_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, bool is_first) {
  if (takes_products(sum) && has_product(a, b, {}) && multiply({.a = a, .b = b, .add = !is_first}, sum)) return;
  at::Tensor result = sum;
  const at::ScalarType dtype = sum.scalar_type();
  const int kept = is_first ? 0 : 1;
  if (sum.is_cuda() && dtype != a.scalar_type())
    at::addmm_out(result, result, a, b, dtype, kept);
  else  // on a CPU a product has the dtype of its factors
    result.addmm_(a.to(dtype), b.to(dtype), kept);
}

at::Tensor column_sum(const at::Tensor& x) {
  if (has_kernel({x})) return fill<kernels::column_sum>(x.new_empty({x.size(1)}), with_dense_rows(x));
  return x.sum(0);
}

void add_weight_gradient(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& sum, bool is_first) {
  add_product(sum.flatten(1), grad.t(), x, is_first);
}

Tensors linear_backward(const at::Tensor& grad, const at::Tensor& x, const Weight& weight, const LinearNeeds& needs) {
  const at::Tensor bias_grad = needs.bias_grad ? column_sum(grad) : at::Tensor();  // while grad is in a GPU's cache
  return {needs.x_grad ? product(grad, weight.value.flatten(1)) : at::Tensor(),
          x.defined() ? weight_gradient(grad, x, weight) : at::Tensor(), bias_grad};
}

at::Tensor linear(const Recomputable& input, const Weight& weight, const at::Tensor& bias, Result result) {
  const at::Tensor& x = input.value;
  if (weight.fp8 && x.size(0) > 0) return linear_fp8(x, weight, bias, result);
  const LinearNeeds needs = needs_of(x, bias);
  return differentiable(
      "LinearBackward", {x, weight.value, bias}, [&] { return forward(x, weight, bias, result); },
      [saved = input.saved_if(weight.value.requires_grad()), weight, needs](const at::Tensor& grad) {
        return linear_backward(grad, saved(), weight, needs);
      });
}

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
  const LinearNeeds needs = needs_of(x, bias);
  if (x.size(0) == 0) return linear(x, weight, bias, result);
  const std::int64_t out = weight.value.size(0), in = weight.value.numel() / out;
  BRAID_CHECK_EQ(x.size(1), in, "features of an fp8 product");
  BRAID_CHECK(in % kFp8Multiple == 0 && out % kFp8Multiple == 0,
              "features of an fp8 product are multiples of {}, not {} -> {}", kFp8Multiple, in, out);
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

LinearAndGelu linear_with_gelu(const Recomputable& input, const Weight& weight, const at::Tensor& bias,
                               Activation form) {
  const at::Tensor& x = input.value;
  BRAID_CHECK(!weight.fp8, "linear maps in fp8 have no GELU");
  at::Tensor activated;
  const LinearNeeds needs = needs_of(x, bias);
  const at::Tensor inner = differentiable(
      "LinearWithGeluBackward", {x, weight.value, bias},
      [&] {
        const ProductAndGelu both = product_with_gelu(x, weight.value.flatten(1).t(), bias, form);
        activated = both.activated;
        return both.inner;
      },
      [saved = input.saved_if(weight.value.requires_grad()), weight, needs](const at::Tensor& grad) {
        return linear_backward(grad, saved(), weight, needs);
      });
  return {inner, activated};
}

at::Tensor linear_of_gelu(const at::Tensor& inner, const Recomputable& activated, Activation form, const Weight& weight,
                          const at::Tensor& bias, Result result) {
  BRAID_CHECK(inner.dim() == 2 && inner.sizes() == activated.value.sizes(), "a GELU has the shape of its input");
  BRAID_CHECK(!weight.fp8, "linear maps in fp8 have no GELU");
  const LinearNeeds needs = {false, bias.defined() && bias.requires_grad()};
  return differentiable(
      "LinearOfGeluBackward", {inner, weight.value, bias},
      [&] { return forward(activated.value, weight, bias, result); },
      [inner, form, saved = activated.saved_if(weight.value.requires_grad()), weight, needs](const at::Tensor& grad) {
        Tensors grads = linear_backward(grad, saved(), weight, needs);
        if (inner.requires_grad()) grads[0] = product_times_gelu_slope(grad, weight.value.flatten(1), inner, form);
        return grads;
      });
}

}  // namespace braid
