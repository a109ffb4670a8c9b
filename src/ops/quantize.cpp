#include "ops/quantize.h"

#include <ATen/TensorOperators.h>
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

}  // namespace

Fp8Pair quantize(const at::Tensor& x, const Fp8Forms& wanted) {
  BRAID_CHECK(x.dim() >= 2 && x.numel() > 0, "quantize needs elements");
  if constexpr (kHasKernels)
    if (has_kernel({x}) && cuda::can_quantize(x)) return cuda::quantize(x, wanted);
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
  if constexpr (kHasKernels)
    if (device.is_cuda()) check_fp8_support(cuda::compute_capability(device));
}

// libtorch has products of experts for these only.
void check_fp8_support(const ComputeCapability& capability) {
  if (capability.major == 9 || capability.major == 10) return;
  throw ConfigError({fmt::format("fp8 needs a GPU of compute capability 9.0 or 10.0, and this one has {}.{}",
                                 capability.major, capability.minor),
                     "model.fp8", "use model.fp8: off, or an H100, H200 or B200"});
}

}  // namespace braid
