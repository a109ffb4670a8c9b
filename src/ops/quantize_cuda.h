// Conversion to fp8 by Braid's kernels; see ops/has_kernel.h.
#pragma once

#include "ops/quantize.h"

namespace braid::cuda {

ComputeCapability compute_capability(const at::Device& device);

// The kernel takes bf16 with columns in multiples of 8 up to 32768, and of several matrices rows in multiples of 16.
bool can_quantize(const at::Tensor& x);
Fp8Pair quantize(const at::Tensor& x, const Fp8Forms& wanted);

// The same for rows of experts. In the columns each expert begins at a multiple of 16, after zeros, as products of its
// part need. x: [R, C], ends and padded ends: [E] int32 -> rows [R, C], columns [C, R + at most 15 (E + 1)]
Fp8Pair quantize_groups(const at::Tensor& x, const Fp8Forms& wanted, const at::Tensor& ends,
                        const at::Tensor& padded_ends);
// Where the experts' parts end then.
at::Tensor padded_ends(const at::Tensor& ends);

}  // namespace braid::cuda
