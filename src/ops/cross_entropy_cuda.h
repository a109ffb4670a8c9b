// The cross entropy by Braid's kernels; see ops/has_kernel.h.
#pragma once

#include "ops/cross_entropy.h"

namespace braid::cuda {

OutputAndSaved<RowSums> vocab_parallel_cross_entropy_forward(const at::Tensor& logits, const at::Tensor& labels,
                                                             const Group& group);
at::Tensor vocab_parallel_cross_entropy_backward(const at::Tensor& grad, const at::Tensor& logits,
                                                 const at::Tensor& labels, const RowSums& row_sums, const Group& group);

}  // namespace braid::cuda
