// The order of rows by expert, by Braid's kernels; see ops/has_kernel.h.
#pragma once

#include "ops/moe.h"

namespace braid::cuda {

bool can_sort_by_expert(std::int64_t num_experts);
ExpertOrder sort_by_expert(const at::Tensor& experts, std::int64_t num_experts);

at::Tensor permute_to_experts_forward(const at::Tensor& x, const at::Tensor& inverse, std::int64_t top_k);
at::Tensor unpermute_from_experts_forward(const at::Tensor& rows, const at::Tensor& inverse, std::int64_t top_k,
                                          const at::Tensor& added);

}  // namespace braid::cuda
