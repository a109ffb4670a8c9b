#pragma once

#include <cstdint>

#include "dist/group.h"
#include "tensor/autograd.h"

namespace braid {

inline constexpr std::int64_t kIgnoredLabel = -100;

// The loss of each token, log(sum exp logits) - logits[label], with the vocabulary split over a group in rank order;
// zero where the label is kIgnoredLabel. The same on every rank of the group, and counted once: the gradient that
// arrives must be the same on every rank and is that of the one loss. Arithmetic in fp32 or wider. Any other label
// outside the vocabulary is a DataError; on a GPU, which is not waited for, its loss and gradient are NaN.
//
// Never makes a second tensor of the logits' size: backward overwrites the logits with their gradient. Whoever wants
// to read them after backward copies them first.   logits: [T, V / size], labels: [T] int64, global -> [T] fp32 or
// wider
at::Tensor vocab_parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const Group& group);

// What is saved beside logits and labels. Softmax is exp(logit - max) / sum, over all ranks.
struct RowSums {
  at::Tensor max, sum;  // [T]
};
OutputAndSaved<RowSums> vocab_parallel_cross_entropy_forward(const at::Tensor& logits, const at::Tensor& labels,
                                                             const Group& group);
// Overwrites the logits with their gradient, (softmax - [column == label]) * grad, and returns them.
at::Tensor vocab_parallel_cross_entropy_backward(const at::Tensor& grad, const at::Tensor& logits,
                                                 const at::Tensor& labels, const RowSums& row_sums, const Group& group);

}  // namespace braid
