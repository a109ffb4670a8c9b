#pragma once

#include <cstdint>

#include "comm/group.h"
#include "tensor/autograd.h"

namespace braid {

inline constexpr std::int64_t kIgnoredLabel = -100;

// The tokens that have a loss.
struct CountedLabels {
  at::Tensor rows, labels;  // [n] int64 each
};
// `labels` are on the CPU, so that the host knows how many count; the result is on `device`.
CountedLabels counted_labels(const at::Tensor& labels, const at::Device& device);

// The loss of each token, log(sum exp logits) - logits[label], with the vocabulary split over a group in rank order;
// zero where the label is kIgnoredLabel. The result is the same on every rank of the group and represents one loss: the
// incoming gradient must be the same on every rank and counts once. Arithmetic in fp32 or wider. Any other label
// outside the vocabulary is a DataError; on a GPU, to avoid a synchronisation, its loss and gradient are NaN instead.
//
// Never allocates a second tensor of the logits' size: backward overwrites the logits with their gradient. Copy the
// logits first if they are needed after backward.   logits: [T, V / size], labels: [T] int64, global -> [T] fp32 or
// wider
at::Tensor vocab_parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const Group& group);

// The id with the largest logit of the whole vocabulary; of equal ones, the smallest. Without autograd.   -> [T] int64
at::Tensor first_choices(const at::Tensor& logits, const Group& group);

// Saved besides logits and labels. Softmax is exp(logit - max) / sum, over all ranks.
struct RowSums {
  at::Tensor max, sum;  // [T]
};
OutputAndSaved<RowSums> vocab_parallel_cross_entropy_forward(const at::Tensor& logits, const at::Tensor& labels,
                                                             const Group& group);
// Overwrites the logits with their gradient, (softmax - [column == label]) * grad, and returns them.
at::Tensor vocab_parallel_cross_entropy_backward(const at::Tensor& grad, const at::Tensor& logits,
                                                 const at::Tensor& labels, const RowSums& row_sums, const Group& group);

}  // namespace braid
