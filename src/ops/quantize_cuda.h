// Conversion to fp8 by Braid's kernels; see ops/has_kernel.h.
#pragma once

#include "ops/quantize.h"

namespace braid::kernels {
struct QuantizedForms;
}

namespace braid::cuda {

ComputeCapability compute_capability(const at::Device& device);

// The kernel takes bf16 with columns in multiples of 8 up to 32768, and of several matrices rows in multiples of 16.
bool can_quantize(const at::Tensor& x);
Fp8Pair quantize(const at::Tensor& x, const Fp8Forms& wanted);

// For other conversions. x itself, or a copy whose rows kernels can read:
at::Tensor aligned_rows(const at::Tensor& x);

// The forms of a matrix or of several, and what a kernel needs to write them.
struct EmptyForms {
  Fp8Pair pair{};
  at::Tensor partials{};

  kernels::QuantizedForms pointers() const;
};
// shape: [..., R, C], where columns have `length` >= R elements; from: [rows in memory, C]
EmptyForms empty_forms(const std::vector<std::int64_t>& shape, const at::Tensor& from, const Fp8Forms& wanted,
                       std::int64_t length);
inline std::int64_t round_up(std::int64_t rows, std::int64_t multiple) {
  return (rows + multiple - 1) / multiple * multiple;
}

}  // namespace braid::cuda
