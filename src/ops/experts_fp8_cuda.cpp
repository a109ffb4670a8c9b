// Conversion to fp8 by Braid's kernels, of matrices and of experts' rows.
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "kernels/quantize.h"
#include "ops/experts_fp8.h"
#include "ops/kernel_call.h"
#include "ops/quantize.h"

namespace braid::cuda {
namespace {

Fp8Matrix empty_matrix(const at::Tensor& like, std::vector<std::int64_t> shape) {
  const auto options = like.options().requires_grad(false);
  const at::Tensor values = at::empty(shape, options.dtype(at::kFloat8_e4m3fn));
  shape.pop_back();
  return {values, at::empty(shape, options.dtype(at::kFloat))};
}

kernels::Quantized pointers(const Fp8Matrix& matrix) {
  return {data<std::uint8_t>(matrix.values), data<float>(matrix.scales)};
}

bool has_aligned_rows(const at::Tensor& x) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(x.data_ptr()) % 16 == 0 && x.stride(-2) % 8 == 0;
  return aligned && x.stride(-1) == 1 && (x.dim() == 2 || x.is_contiguous());
}

// x itself, or a copy whose rows kernels can read.
at::Tensor aligned_rows(const at::Tensor& x) { return has_aligned_rows(x) ? x : x.clone(at::MemoryFormat::Contiguous); }

// The forms of a matrix or of several, and what a kernel needs to write them.
struct EmptyForms {
  Fp8Pair pair{};
  at::Tensor partials{};

  kernels::QuantizedForms pointers() const;
};

std::int64_t round_up(std::int64_t rows, std::int64_t multiple) { return (rows + multiple - 1) / multiple * multiple; }

// shape: [..., R, C], where columns have `length` >= R elements; from: [rows in memory, C]
EmptyForms empty_forms(const std::vector<std::int64_t>& shape, const at::Tensor& from, const Fp8Forms& wanted,
                       std::int64_t length) {
  EmptyForms to;
  if (wanted.rows) to.pair.rows = empty_matrix(from, shape);
  if (wanted.columns) {
    std::vector<std::int64_t> transposed = shape;
    transposed[shape.size() - 2] = shape.back();
    transposed.back() = length;
    to.pair.columns = empty_matrix(from, transposed);
    const std::int64_t batches = shape.size() == 2 ? 1 : from.size(0) / shape[shape.size() - 2];
    to.partials = at::empty({kernels::quantize_partials(from.size(0), shape.back(), batches)},
                            from.options().requires_grad(false));
  }
  return to;
}

kernels::QuantizedForms EmptyForms::pointers() const {
  return {.rows = cuda::pointers(pair.rows),
          .columns = cuda::pointers(pair.columns),
          .length = pair.columns.values.defined() ? pair.columns.values.size(-1) : 0,
          .partials = data<__nv_bfloat16>(partials)};
}

}  // namespace

ComputeCapability compute_capability(const at::Device& device) {
  const cudaDeviceProp& properties = *at::cuda::getDeviceProperties(device.index());
  return {properties.major, properties.minor};
}

bool can_quantize(const at::Tensor& x) {
  const std::int64_t columns = x.size(-1);
  const bool one = x.dim() == 2, fits = columns % 8 == 0 && columns <= kernels::kMostQuantizedColumns;
  return x.scalar_type() == at::kBFloat16 && fits && (one || x.size(-2) % kFp8Multiple == 0);
}

Fp8Pair quantize(const at::Tensor& x, const Fp8Forms& wanted) {
  const at::Tensor from = aligned_rows(x).flatten(0, -2);
  const EmptyForms to = empty_forms(x.sizes().vec(), from, wanted, round_up(x.size(-2), kFp8Multiple));
  call_kernel(x, [&]<class T>(cudaStream_t stream) {
    kernels::quantize(const_matrix<__nv_bfloat16>(from), from.size(0) / x.size(-2), to.pointers(), stream);
  });
  return to.pair;
}

namespace {

// The forms of `rows` rows of experts.
struct Output {
  Fp8Pair pair;
  at::Tensor partials;
  kernels::QuantizedForms forms;
};
Output empty_groups(std::int64_t rows, const at::Tensor& from, const Fp8Forms& wanted, const Fp8Groups& groups) {
  BRAID_CHECK(from.dim() == 2 && can_quantize(from), "rows of experts in fp8");
  const std::int64_t count = groups.ends.numel(), most = rows + count * (kernels::kGroupMultiple - 1);
  const EmptyForms to = empty_forms({rows, from.size(1)}, from, wanted, round_up(most, kernels::kGroupMultiple));
  kernels::QuantizedForms forms = to.pointers();
  forms.groups = {data<const std::int32_t>(groups.ends), data<const std::int32_t>(groups.padded_ends), count};
  return {to.pair, to.partials, forms};
}

at::Tensor float_scales(const at::Tensor& scale) { return scale.to(at::kFloat).contiguous(); }

}  // namespace

Fp8Pair quantize_groups(const at::Tensor& rows, const Fp8Forms& wanted, const Fp8Groups& groups) {
  const at::Tensor from = aligned_rows(rows);
  const Output to = empty_groups(rows.size(0), from, wanted, groups);
  call_kernel(rows, [&]<class T>(cudaStream_t stream) {
    kernels::quantize(const_matrix<__nv_bfloat16>(from), 1, to.forms, stream);
  });
  return to.pair;
}

Fp8Pair quantize_permuted(const at::Tensor& tokens, const ExpertOrder& order, std::int64_t top_k,
                          const Fp8Forms& wanted, const Fp8Groups& groups) {
  const at::Tensor from = aligned_rows(tokens);
  const Output to = empty_groups(tokens.size(0) * top_k, from, wanted, groups);
  const kernels::TokenOrder of_tokens = {data<const std::int64_t>(order.order), data<const std::int64_t>(order.inverse),
                                         static_cast<int>(top_k)};
  call_kernel(tokens, [&]<class T>(cudaStream_t stream) {
    kernels::quantize_permuted(const_matrix<__nv_bfloat16>(from), of_tokens, to.forms, stream);
  });
  return to.pair;
}

Fp8Pair quantize_scaled_squared_relu(const at::Tensor& x, const at::Tensor& scale, const Fp8Forms& wanted,
                                     const Fp8Groups& groups) {
  const at::Tensor from = aligned_rows(x), scales = float_scales(scale);
  const Output to = empty_groups(x.size(0), from, wanted, groups);
  call_kernel(x, [&]<class T>(cudaStream_t stream) {
    kernels::quantize_scaled_squared_relu(const_matrix<__nv_bfloat16>(from), data<const float>(scales), to.forms,
                                          stream);
  });
  return to.pair;
}

Fp8ScaledGradients quantize_scaled_squared_relu_backward(const at::Tensor& grad, const at::Tensor& x,
                                                         const at::Tensor& scale, const Fp8Forms& wanted,
                                                         bool scale_wants_gradient, const Fp8Groups& groups) {
  const at::Tensor slopes = aligned_rows(grad), from = aligned_rows(x), scales = float_scales(scale);
  const Output to = empty_groups(x.size(0), from, wanted, groups);
  const at::Tensor x_grad = at::empty(x.sizes(), x.options().requires_grad(false));
  const at::Tensor scale_grad = scale_wants_gradient ? at::empty_like(scales) : at::Tensor();
  call_kernel(x, [&]<class T>(cudaStream_t stream) {
    kernels::quantize_scaled_squared_relu_backward(
        const_matrix<__nv_bfloat16>(slopes), const_matrix<__nv_bfloat16>(from), data<const float>(scales),
        data<__nv_bfloat16>(x_grad), data<float>(scale_grad), to.forms, stream);
  });
  return {to.pair, scale_wants_gradient ? scale_grad.to(scale.scalar_type()) : scale_grad};
}

at::Tensor padded_ends(const at::Tensor& ends) {
  const at::Tensor result = at::empty_like(ends);
  call_kernel(ends, [&]<class T>(cudaStream_t stream) {
    kernels::pad_ends(data<const std::int32_t>(ends), ends.numel(), data<std::int32_t>(result), stream);
  });
  return result;
}

}  // namespace braid::cuda
