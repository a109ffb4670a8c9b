#pragma once

#include <cstdint>

#include "tensor/autograd.h"
#include "tensor/weight.h"

namespace braid {

// One of `count` equal slices of a vocabulary, in order.
struct VocabularyShard {
  std::int64_t index = 0, count = 1;
};

// The embeddings of those ids that the shard holds; zeros for ids of other shards, NaN for ids outside the vocabulary,
// so that a sum over the shards looks up every id.   ids: [T] int64, weight: [V / count, H] -> [T, H]
at::Tensor embedding(const at::Tensor& ids, const Weight& weight, const VocabularyShard& shard);
at::Tensor embedding_forward(const at::Tensor& ids, const at::Tensor& weight, const VocabularyShard& shard);
// Gradient of the weight, undefined if it was added to the weight's sum. Saved: ids.
at::Tensor embedding_backward(const at::Tensor& grad, const at::Tensor& ids, const Weight& weight,
                              const VocabularyShard& shard);

namespace cuda {  // embedding_cuda.cpp

decltype(braid::embedding_forward) embedding_forward;
decltype(braid::embedding_backward) embedding_backward;

}  // namespace cuda
}  // namespace braid
