#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include "kernels/cross_entropy.h"
#include "ops/cross_entropy.h"
#include "ops/kernel_call.h"

namespace braid::cuda {
namespace {

// `labels` must be contiguous.
kernels::LabelledColumns columns_of(const at::Tensor& logits, const at::Tensor& labels, const VocabularyRanks& ranks) {
  const std::int64_t width = logits.size(1);
  return {data<std::int64_t>(labels), ranks.rank * width, ranks.count * width, kIgnoredLabel};
}

// Over all ranks, from what they found in their columns.
OutputAndSaved<RowSums> combined(const RowSums& own, const at::Tensor& found, const at::Tensor& labels,
                                 std::int64_t width, const VocabularyRanks& ranks) {
  at::Tensor max = own.max.clone();
  ranks.max_over_ranks(max);
  const at::Tensor is_here = labels.div(width, "floor") == ranks.rank;
  // One collective for both; the label's logit comes from the one rank that holds it.
  at::Tensor sums = at::stack({own.sum * (own.max - max).exp_(), (found - max).masked_fill_(~is_here, 0)});
  ranks.sum_over_ranks(sums);
  const at::Tensor loss = (sums[0].log() - sums[1]).masked_fill_(labels == kIgnoredLabel, 0);
  return {loss, {max, sums[0]}};
}

}  // namespace

OutputAndSaved<RowSums> vocab_parallel_cross_entropy_forward(const at::Tensor& logits, const at::Tensor& labels,
                                                             const VocabularyRanks& ranks) {
  const at::Tensor results = at::empty({4, logits.size(0)}, logits.options().dtype(at::kFloat));
  const at::Tensor max = results[0], sum = results[1], found = results[2], loss = results[3];
  const at::Tensor dense_labels = labels.contiguous();
  call_kernel(logits, [&]<class T>(cudaStream_t stream) {
    kernels::cross_entropy_forward<T>(matrix<const T>(logits), columns_of(logits, dense_labels, ranks),
                                      {data<float>(max), data<float>(sum), data<float>(found), data<float>(loss)},
                                      stream);
  });
  if (ranks.count == 1 || logits.size(0) == 0) return {loss, {max, sum}};
  return combined({max, sum}, found, labels, logits.size(1), ranks);
}

at::Tensor vocab_parallel_cross_entropy_backward(const at::Tensor& grad, const at::Tensor& logits,
                                                 const at::Tensor& labels, const RowSums& row_sums,
                                                 const VocabularyRanks& ranks) {
  const at::Tensor gradient = logits.detach(), dense_labels = labels.contiguous(), dense_grad = grad.contiguous();
  call_kernel(logits, [&]<class T>(cudaStream_t stream) {
    kernels::cross_entropy_backward<T>(matrix<T>(gradient), columns_of(logits, dense_labels, ranks),
                                       {data<float>(row_sums.max), data<float>(row_sums.sum), data<float>(dense_grad)},
                                       stream);
  });
  return gradient;
}

}  // namespace braid::cuda
