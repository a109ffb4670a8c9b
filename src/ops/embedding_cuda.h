// The embedding by Braid's kernels; see ops/has_kernel.h.
#pragma once

#include "ops/embedding.h"

namespace braid::cuda {

at::Tensor embedding_forward(const at::Tensor& ids, const at::Tensor& weight, const VocabularyShard& shard);
at::Tensor embedding_backward(const at::Tensor& grad, const at::Tensor& ids, const Weight& weight,
                              const VocabularyShard& shard);

}  // namespace braid::cuda
