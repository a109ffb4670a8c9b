#include <ATen/ops/empty.h>

#include "kernels/grouped_product.h"
#include "kernels/moe.h"
#include "ops/grouped_linear.h"
#include "ops/has_kernel.h"
#include "ops/kernel_call.h"

namespace braid::cuda {
namespace {

kernels::ExpertWeights weights_of(const at::Tensor& grad, const at::Tensor& ends) {
  BRAID_CHECK(grad.is_contiguous(), "gradients of experts must be contiguous");
  return {data<std::int32_t>(ends), grad.size(0), grad.size(1) * grad.size(2)};
}

bool is_aligned(const at::Tensor& x) { return reinterpret_cast<std::uintptr_t>(x.data_ptr()) % 16 == 0; }

// x itself or a copy.   x: [R, columns]
at::Tensor with_aligned_rows(const at::Tensor& x) {
  if (is_aligned(x) && x.stride(1) == 1 && x.stride(0) % 8 == 0 && x.stride(0) >= x.size(1)) return x;
  const at::Tensor dense = x.contiguous();
  return is_aligned(dense) ? dense : dense.clone();
}

bool are_bf16_rows(const at::Tensor& rows) { return rows.scalar_type() == at::kBFloat16 && rows.size(0) > 0; }

// x: [E, Out, In]
bool fits_kernels(const at::Tensor& x) {
  if (x.numel() == 0 || x.size(1) % 8 != 0 || x.size(2) % 8 != 0 || !x.is_contiguous() || !is_aligned(x)) return false;
  const c10::cuda::CUDAGuard guard(x.device());
  return kernels::has_grouped_products();
}

// Gradients can be written to x, or added to it.
bool takes_gradients(const at::Tensor& x, bool overwrite) {
  return (x.scalar_type() == at::kFloat || (overwrite && x.scalar_type() == at::kBFloat16)) && fits_kernels(x);
}

kernels::Fp8Operand operand(const Fp8Matrix& x) {
  BRAID_CHECK(x.values.is_contiguous() && x.scales.is_contiguous(), "matrices in fp8 must be contiguous");
  return {data<const std::uint8_t>(x.values), data<const float>(x.scales), x.scales.numel(), x.values.size(-1)};
}

kernels::ExpertEnds experts_of(const at::Tensor& ends) { return {data<const std::int32_t>(ends), ends.numel()}; }

}  // namespace

bool has_row_products(const at::Tensor& rows, const at::Tensor& weight) {
  return has_kernel({rows, weight}) && are_bf16_rows(rows) && fits_kernels(weight);
}

bool has_gradient_products(const at::Tensor& grad, const at::Tensor& rows, const at::Tensor& result, bool overwrite) {
  return has_kernel({grad, rows}) && are_bf16_rows(rows) && takes_gradients(result, overwrite);
}

bool has_row_products(const Fp8Matrix& rows, const Fp8Matrix& weight) {
  return has_kernel({rows.scales, weight.scales}) && fits_kernels(weight.values);
}

bool has_gradient_products(const Fp8Matrix& grad, const Fp8Matrix& rows, const at::Tensor& result, bool overwrite) {
  return has_kernel({grad.scales, rows.scales}) && takes_gradients(result, overwrite);
}

at::Tensor multiply_rows(const at::Tensor& ends, const at::Tensor& rows, const at::Tensor& weight, bool transposed) {
  const at::Tensor left = with_aligned_rows(rows);
  const at::Tensor result = at::empty({rows.size(0), weight.size(transposed ? 1 : 2)}, rows.options());
  call_kernel(rows, [&]<class T>(cudaStream_t stream) {
    kernels::multiply_rows(experts_of(ends), const_matrix<__nv_bfloat16>(left), data<const __nv_bfloat16>(weight),
                           transposed, matrix<__nv_bfloat16>(result), stream);
  });
  return result;
}

void write_expert_gradients(const at::Tensor& ends, const at::Tensor& grad, const at::Tensor& rows,
                            const at::Tensor& result, bool overwrite) {
  const at::Tensor left = with_aligned_rows(grad), right = with_aligned_rows(rows);
  call_kernel(result, [&]<class T>(cudaStream_t stream) {
    kernels::multiply_columns(experts_of(ends), const_matrix<__nv_bfloat16>(left), const_matrix<__nv_bfloat16>(right),
                              data<T>(result), overwrite, stream);
  });
}

at::Tensor multiply_rows(const at::Tensor& ends, const Fp8Matrix& rows, const Fp8Matrix& weight) {
  const at::Tensor result =
      at::empty({rows.values.size(0), weight.values.size(1)}, rows.values.options().dtype(at::kBFloat16));
  call_kernel(result, [&]<class T>(cudaStream_t stream) {
    kernels::multiply_rows(experts_of(ends), operand(rows), operand(weight), matrix<__nv_bfloat16>(result), stream);
  });
  return result;
}

void write_expert_gradients(const at::Tensor& padded_ends, const Fp8Matrix& grad, const Fp8Matrix& rows,
                            const at::Tensor& result, bool overwrite) {
  call_kernel(result, [&]<class T>(cudaStream_t stream) {
    kernels::multiply_columns(experts_of(padded_ends), operand(grad), operand(rows), data<T>(result), overwrite,
                              stream);
  });
}

void clear_expert_gradients(const at::Tensor& ends, const at::Tensor& grad) {
  call_kernel(grad, [&]<class T>(cudaStream_t stream) {
    kernels::clear_gradients(weights_of(grad, ends), data<__nv_bfloat16>(grad), stream);
  });
}

}  // namespace braid::cuda
