#include "ops/quantize_cuda.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/ops/empty.h>

#include "kernels/quantize.h"
#include "ops/kernel_call.h"

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

}  // namespace

at::Tensor aligned_rows(const at::Tensor& x) { return has_aligned_rows(x) ? x : x.clone(at::MemoryFormat::Contiguous); }

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

}  // namespace braid::cuda
