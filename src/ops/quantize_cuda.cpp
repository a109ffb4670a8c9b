#include "ops/quantize_cuda.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

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

std::int64_t padded(std::int64_t rows) { return (rows + kFp8Multiple - 1) / kFp8Multiple * kFp8Multiple; }

Fp8Pair quantize(const at::Tensor& x, const Fp8Forms& wanted, std::int64_t length, const kernels::RowGroups& groups) {
  const at::Tensor from = (has_aligned_rows(x) ? x : x.clone(at::MemoryFormat::Contiguous)).flatten(0, -2);
  const std::int64_t batches = from.size(0) / x.size(-2), columns = x.size(-1);
  Fp8Pair pair;
  at::Tensor partials;
  if (wanted.rows) pair.rows = empty_matrix(x, x.sizes().vec());
  if (wanted.columns) {
    std::vector<std::int64_t> shape = x.sizes().vec();
    shape[shape.size() - 2] = columns;
    shape.back() = length;
    pair.columns = empty_matrix(x, shape);
    partials =
        at::empty({kernels::quantize_partials(from.size(0), columns, batches)}, x.options().requires_grad(false));
  }
  call_kernel(x, [&]<class T>(cudaStream_t stream) {
    kernels::quantize(const_matrix<__nv_bfloat16>(from), batches, pointers(pair.rows), pointers(pair.columns), length,
                      groups, data<__nv_bfloat16>(partials), stream);
  });
  return pair;
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

Fp8Pair quantize(const at::Tensor& x, const Fp8Forms& wanted) { return quantize(x, wanted, padded(x.size(-2)), {}); }

Fp8Pair quantize_groups(const at::Tensor& x, const Fp8Forms& wanted, const at::Tensor& ends,
                        const at::Tensor& padded_ends) {
  BRAID_CHECK(x.dim() == 2 && can_quantize(x), "rows of experts in fp8");
  const std::int64_t count = ends.numel(), most_padding = count * (kFp8Multiple - 1);
  return quantize(x, wanted, padded(x.size(0) + most_padding),
                  {data<const std::int32_t>(ends), data<const std::int32_t>(padded_ends), count});
}

at::Tensor padded_ends(const at::Tensor& ends) {
  const at::Tensor result = at::empty_like(ends);
  call_kernel(ends, [&]<class T>(cudaStream_t stream) {
    kernels::pad_ends(data<const std::int32_t>(ends), ends.numel(), data<std::int32_t>(result), stream);
  });
  return result;
}

}  // namespace braid::cuda
