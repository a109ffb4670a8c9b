#include "ops/quantize.h"
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/where.h>
#include "base/error.h"
#include "ops/has_kernel.h"

namespace braid {
namespace {

Fp8Matrix quantize_rows(const at::Tensor& x) {
  constexpr float kInverseLargest = 1 / 448.f, kTiny = 1e-30f;
  const at::Tensor wide = x.to(at::kFloat), largest = wide.abs().amax(-1);
  // Multiplied, not divided: the same bits on every device.
  const at::Tensor scales = at::where(largest > kTiny, largest * kInverseLargest, 1);
  return {(wide * scales.reciprocal().unsqueeze(-1)).to(at::kFloat8_e4m3fn), scales};
}

at::Tensor padded_transpose(const at::Tensor& x) {
  const std::int64_t rows = x.size(-2), missing = (kFp8Multiple - rows % kFp8Multiple) % kFp8Multiple;
  return at::constant_pad_nd(x.transpose(-2, -1), {0, missing}).contiguous();
}

Fp8Matrix empty_matrix(const at::Tensor& like, std::vector<std::int64_t> shape) {
  const at::Tensor values = like.new_empty(shape, at::kFloat8_e4m3fn);
  shape.pop_back();
  return {values, like.new_empty(shape, at::kFloat)};
}

bool has_aligned_rows(const at::Tensor& x) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(x.data_ptr()) % 16 == 0 && x.stride(-2) % 8 == 0;
  return aligned && x.stride(-1) == 1 && (x.dim() == 2 || x.is_contiguous());
}

}  // namespace

bool can_quantize(const at::Tensor& x) {
  const std::int64_t columns = x.size(-1);
  const bool one = x.dim() == 2, fits = columns % 8 == 0 && columns <= kernels::kMostQuantizedColumns;
  return x.scalar_type() == at::kBFloat16 && fits && (one || x.size(-2) % kFp8Multiple == 0);
}

at::Tensor quantizable(const at::Tensor& x) { return has_aligned_rows(x) ? x : x.clone(at::MemoryFormat::Contiguous); }

kernels::Fp8Matrices kernel_matrices(const Fp8Matrix& x) {
  const bool dense = !x.values.defined() || (x.values.is_contiguous() && x.scales.is_contiguous());
  BRAID_CHECK(dense, "matrices in fp8 must be contiguous");
  return {kernel_tensor(x.values), kernel_tensor(x.scales)};
}

Fp8Pair empty_pair(const at::Tensor& like, const std::vector<std::int64_t>& shape, const Fp8Forms& wanted,
                   std::int64_t length) {
  std::vector<std::int64_t> transposed = shape;
  transposed[shape.size() - 2] = shape.back();
  transposed.back() = length;
  return {wanted.rows ? empty_matrix(like, shape) : Fp8Matrix(),
          wanted.columns ? empty_matrix(like, transposed) : Fp8Matrix()};
}

Fp8Pair quantize(const at::Tensor& x, const Fp8Forms& wanted) {
  BRAID_CHECK(x.dim() >= 2 && x.numel() > 0, "quantize needs elements");
  if (has_kernel({x}) && can_quantize(x)) {
    const Fp8Pair pair = empty_pair(x, x.sizes().vec(), wanted, round_up(x.size(-2), kFp8Multiple));
    const at::Tensor from = quantizable(x).flatten(0, -2);
    call<kernels::quantize>(from, from.size(0) / x.size(-2),
                            kernels::QuantizedForms{kernel_matrices(pair.rows), kernel_matrices(pair.columns)});
    return pair;
  }
  Fp8Pair pair;
  if (wanted.rows) pair.rows = quantize_rows(x);
  if (wanted.columns) pair.columns = quantize_rows(padded_transpose(x));
  return pair;
}

const Fp8Pair& Fp8Copies::of(const at::Tensor& matrix, const Fp8Forms& wanted) {
  if (version != matrix._version() || data != matrix.const_data_ptr()) forms = {};
  version = matrix._version();
  data = matrix.const_data_ptr();
  const Fp8Forms missing = {wanted.rows && !forms.rows.values.defined(),
                            wanted.columns && !forms.columns.values.defined()};
  if (!missing.rows && !missing.columns) return forms;
  const Fp8Pair added = quantize(matrix, missing);
  if (missing.rows) forms.rows = added.rows;
  if (missing.columns) forms.columns = added.columns;
  return forms;
}

at::Tensor dequantize(const Fp8Matrix& matrix) { return matrix.values.to(at::kFloat) * matrix.scales.unsqueeze(-1); }

at::Tensor fp8_product(const Fp8Matrix& a, const Fp8Matrix& b, at::ScalarType dtype, Fp8Sum sum) {
  const at::Tensor result = at::empty({a.values.size(0), b.values.size(0)}, a.scales.options().dtype(dtype));
  write_fp8_product(result, a, b, sum);
  return result;
}

void write_fp8_product(at::Tensor result, const Fp8Matrix& a, const Fp8Matrix& b, Fp8Sum sum) {
  const at::ScalarType dtype = result.scalar_type();
  if (a.values.is_cuda() && (dtype == at::kBFloat16 || dtype == at::kFloat))
    at::_scaled_mm_out(result, a.values, b.values.t(), a.scales.unsqueeze(1), b.scales.unsqueeze(0), {}, {}, dtype,
                       /*use_fast_accum=*/sum == Fp8Sum::Fast);
  else
    result.copy_(at::mm(dequantize(a), dequantize(b).t()));
}

void check_fp8_support(const at::Device& device) {
  if (kHasKernels && device.is_cuda()) check_fp8_support(ask<kernels::compute_capability>(device));
}

// libtorch has products of experts for these only.
void check_fp8_support(const ComputeCapability& capability) {
  if (capability.major == 9 || capability.major == 10) return;
  throw ConfigError({fmt::format("fp8 needs a GPU of compute capability 9.0 or 10.0, and this one has {}.{}",
                                 capability.major, capability.minor),
                     "model.fp8", "use model.fp8: off, or an H100, H200 or B200"});
}

}  // namespace braid
