#pragma once

#include "base/ignored_label.h"
#include "tensor/autograd.h"

namespace braid {

// The tokens that have a loss.
struct CountedLabels {
  at::Tensor rows, labels;  // [n] int64 each
};
// `labels` are on the CPU, so that the host knows how many count; the result is on `device`.
CountedLabels counted_labels(const at::Tensor& labels, const at::Device& device);

// The ranks that share a vocabulary in equal slices, in rank order: which of them this one is, and how they combine
// what each has computed, in place (nn/parallel.h makes this of a group).
struct VocabularyRanks {
  std::int64_t rank = 0, count = 1;
  std::function<void(at::Tensor&)> max_over_ranks{}, sum_over_ranks{};
};

// The loss of each token, log(sum exp logits) - logits[label], over the vocabulary of all ranks; zero where the label
// is kIgnoredLabel. The result is the same on every rank and represents one loss: the incoming gradient must be the
// same on every rank and counts once. Arithmetic in fp32 or wider. Any other label outside the vocabulary is a
// DataError; on a GPU, to avoid a synchronisation, its loss and gradient are NaN instead.
//
// Never allocates a second tensor of the logits' size: backward overwrites the logits with their gradient. Copy the
// logits first if they are needed after backward.   logits: [T, V / size], labels: [T] int64, global -> [T] fp32 or
// wider
at::Tensor vocab_parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& labels,
                                        const VocabularyRanks& ranks);

// The id with the largest logit of the whole vocabulary; of equal ones, the smallest. Without autograd.   -> [T] int64
at::Tensor first_choices(const at::Tensor& logits, const VocabularyRanks& ranks);

// Saved besides logits and labels. Softmax is exp(logit - max) / sum, over all ranks.
struct RowSums {
  at::Tensor max, sum;  // [T]
};
OutputAndSaved<RowSums> vocab_parallel_cross_entropy_forward(const at::Tensor& logits, const at::Tensor& labels,
                                                             const VocabularyRanks& ranks);
// Overwrites the logits with their gradient, (softmax - [column == label]) * grad, and returns them.
at::Tensor vocab_parallel_cross_entropy_backward(const at::Tensor& grad, const at::Tensor& logits,
                                                 const at::Tensor& labels, const RowSums& row_sums,
                                                 const VocabularyRanks& ranks);

}  // namespace braid
