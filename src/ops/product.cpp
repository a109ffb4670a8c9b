#include "ops/product.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>

#include "ops/has_kernel.h"

namespace braid {

at::Tensor product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  if constexpr (kHasKernels)
    if (cuda::has_product(a, b, bias)) return cuda::product(a, b, bias);
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
  if constexpr (kHasKernels)
    if (form == Activation::GeluTanh && cuda::has_product(a, b, bias))
      if (const ProductAndGelu both = cuda::product_with_gelu(a, b, bias); both.inner.defined()) return both;
  const at::Tensor inner = product(a, b, bias);
  return {inner, activation_forward(inner, form)};
}

at::Tensor product_times_gelu_slope(const at::Tensor& a, const at::Tensor& b, const at::Tensor& inner,
                                    Activation form) {
  if constexpr (kHasKernels)
    if (form == Activation::GeluTanh && cuda::has_product(a, b, {}) && cuda::has_sum_of_products(inner, a, b))
      if (const at::Tensor result = cuda::product_times_gelu_slope(a, b, inner); result.defined()) return result;
  return activation_backward(product(a, b), inner, form);
}

void add_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, bool is_first) {
  if constexpr (kHasKernels)
    if (cuda::has_sum_of_products(sum, a, b)) return cuda::add_product(sum, a, b, is_first);
  at::Tensor result = sum;
  const at::ScalarType dtype = sum.scalar_type();
  const int kept = is_first ? 0 : 1;
  if (sum.is_cuda() && dtype != a.scalar_type())
    at::addmm_out(result, result, a, b, dtype, kept);
  else  // on a CPU a product has the dtype of its factors
    result.addmm_(a.to(dtype), b.to(dtype), kept);
}

at::Tensor column_sum(const at::Tensor& x) {
  if constexpr (kHasKernels)
    if (has_kernel({x})) return cuda::column_sum(x);
  return x.sum(0);
}

}  // namespace braid
