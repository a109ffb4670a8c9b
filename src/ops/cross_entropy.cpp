#include "ops/cross_entropy.h"
#include <ATen/OpMathType.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include "base/error.h"
#include "kernels/rows.h"
#include "ops/has_kernel.h"
#include "tensor/copies.h"

namespace braid {
namespace {

// Calls visit(begin, rows) for blocks of rows whose fp32 copy takes at most 64 MiB: enough to fill a GPU, small
// compared with the logits of a long sequence.
template <class Visit>
void for_each_block(const at::Tensor& logits, Visit visit) {
  constexpr std::int64_t kBlockElements = std::int64_t{16} << 20;
  const std::int64_t rows = logits.size(0);
  const std::int64_t step = std::max<std::int64_t>(1, kBlockElements / std::max<std::int64_t>(1, logits.size(1)));
  for (std::int64_t begin = 0; begin < rows; begin += step) visit(begin, std::min(step, rows - begin));
}

// The column of each label in this rank's slice of the vocabulary.
struct Targets {
  at::Tensor column;  // [T, 1], 0 where another rank has the label
  at::Tensor here;    // [T] bool

  Targets(const at::Tensor& labels, std::int64_t width, const VocabularyRanks& ranks) {
    const at::Tensor local = labels - ranks.rank * width;
    here = (local >= 0).logical_and_(local < width);
    column = local.mul_(here).unsqueeze(1);
  }
};

// [rows, V / size], a copy in the dtype of the row sums
at::Tensor exponentials(const at::Tensor& logits, const at::Tensor& max) { return (logits - max.unsqueeze(1)).exp_(); }

// [T] bool
at::Tensor outside_vocabulary(const at::Tensor& labels, std::int64_t vocabulary) {
  return (labels < 0).logical_or_(labels >= vocabulary).logical_and_(labels != kIgnoredLabel);
}

void check_labels_on_host(const at::Tensor& labels, std::int64_t vocabulary) {
  if (!labels.is_cpu()) return;  // checking them would make the host wait for the GPU
  const at::Tensor outside = outside_vocabulary(labels, vocabulary);
  if (!outside.any().item<bool>()) return;
  const std::int64_t token = outside.to(at::kInt).argmax().item<std::int64_t>();
  throw DataError(fmt::format(
      "label {} of token {} is outside the vocabulary of {}: train with the tokenizer that the model's vocabulary was "
      "made for; labels without a loss are {}",
      labels[token].item<std::int64_t>(), token, vocabulary, kIgnoredLabel));
}

kernels::VocabularySlice slice_of(const at::Tensor& logits, const VocabularyRanks& ranks) {
  return {ranks.rank * logits.size(1), ranks.count * logits.size(1)};
}

OutputAndSaved<RowSums> forward_by_kernel(const at::Tensor& logits, const at::Tensor& labels,
                                          const VocabularyRanks& ranks) {
  const at::Tensor results = logits.new_empty({4, logits.size(0)}, at::kFloat);
  call<kernels::cross_entropy_forward>(logits, labels.contiguous(), slice_of(logits, ranks), kIgnoredLabel, results);
  const at::Tensor own_max = results[0], own_sum = results[1], found = results[2], loss = results[3];
  if (ranks.count == 1 || logits.size(0) == 0) return {loss, {own_max, own_sum}};
  at::Tensor max = own_max.clone();
  ranks.max_over_ranks(max);
  const at::Tensor is_here = labels.div(logits.size(1), "floor") == ranks.rank;
  // One collective for both; the label's logit comes from the one rank that holds it.
  at::Tensor sums = at::stack({own_sum * (own_max - max).exp_(), (found - max).masked_fill_(~is_here, 0)});
  ranks.sum_over_ranks(sums);
  return {(sums[0].log() - sums[1]).masked_fill_(labels == kIgnoredLabel, 0), {max, sums[0]}};
}

void reduce(at::Tensor& values, const std::function<void(at::Tensor&)>& over_ranks) {
  if (over_ranks && values.numel() > 0) over_ranks(values);
}

}  // namespace

CountedLabels counted_labels(const at::Tensor& labels, const at::Device& device) {
  const at::Tensor rows = (labels != kIgnoredLabel).nonzero().squeeze(1);
  return {upload(rows, device), upload(labels.index_select(0, rows), device)};
}

OutputAndSaved<RowSums> vocab_parallel_cross_entropy_forward(const at::Tensor& logits, const at::Tensor& labels,
                                                             const VocabularyRanks& ranks) {
  if (has_kernel({logits})) return forward_by_kernel(logits, labels, ranks);
  const at::ScalarType dtype = at::toOpMathType(logits.scalar_type());
  at::Tensor max = logits.amax(1).to(dtype);
  reduce(max, ranks.max_over_ranks);
  at::Tensor sum = at::empty_like(max);
  for_each_block(logits, [&](std::int64_t begin, std::int64_t rows) {
    at::Tensor part = sum.narrow(0, begin, rows);
    at::sum_out(part, exponentials(logits.narrow(0, begin, rows), max.narrow(0, begin, rows)), 1);
  });
  const Targets targets(labels, logits.size(1), ranks);
  const at::Tensor found = logits.gather(1, targets.column).squeeze(1) - max;
  // One collective for both; the label's logit comes from the one rank that holds it.
  at::Tensor sums = at::stack({sum, at::where(targets.here, found, at::zeros_like(found))});
  reduce(sums, ranks.sum_over_ranks);
  // A label that the host did not check turns its token's loss and, through the sum, its gradient into NaN.
  if (!labels.is_cpu())
    sums[0].masked_fill_(outside_vocabulary(labels, logits.size(1) * ranks.count),
                         std::numeric_limits<double>::quiet_NaN());
  const at::Tensor loss = (sums[0].log() - sums[1]).masked_fill_(labels == kIgnoredLabel, 0);
  return {loss, {max, sums[0]}};
}

at::Tensor first_choices(const at::Tensor& logits, const VocabularyRanks& ranks) {
  const auto [largest, column] = logits.detach().max(1);
  at::Tensor largest_of_all = largest.clone();
  reduce(largest_of_all, ranks.max_over_ranks);
  // The smallest id is the one with the largest negative.
  const std::int64_t width = logits.size(1);
  const at::Tensor none = at::full_like(column, -width * ranks.count);
  at::Tensor negative = at::where(largest == largest_of_all, -(column + ranks.rank * width), none);
  reduce(negative, ranks.max_over_ranks);
  return negative.neg_();
}

at::Tensor vocab_parallel_cross_entropy_backward(const at::Tensor& grad, const at::Tensor& logits,
                                                 const at::Tensor& labels, const RowSums& row_sums,
                                                 const VocabularyRanks& ranks) {
  const at::Tensor gradient = logits.detach();
  if (has_kernel({logits}) && has_kernel({grad, row_sums.max})) {
    call<kernels::cross_entropy_backward>(gradient, labels.contiguous(), slice_of(logits, ranks), kIgnoredLabel,
                                          row_sums.max, row_sums.sum, grad.contiguous());
    return gradient;
  }
  const Targets targets(labels, logits.size(1), ranks);
  const at::Tensor hit = targets.here.to(row_sums.sum.scalar_type()).unsqueeze(1).neg_();
  const at::Tensor ignored = (labels == kIgnoredLabel).unsqueeze(1);
  for_each_block(logits, [&](std::int64_t begin, std::int64_t rows) {
    const auto block = [&](const at::Tensor& x) { return x.narrow(0, begin, rows); };
    at::Tensor result = exponentials(block(logits), block(row_sums.max)).div_(block(row_sums.sum).unsqueeze(1));
    result.scatter_add_(1, block(targets.column), block(hit)).mul_(block(grad).unsqueeze(1));
    block(gradient).copy_(result.masked_fill_(block(ignored), 0));
  });
  return gradient;
}

at::Tensor vocab_parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& labels,
                                        const VocabularyRanks& ranks) {
  BRAID_CHECK(logits.dim() == 2 && labels.dim() == 1 && logits.size(0) == labels.size(0), "one label per row");
  check_labels_on_host(labels, logits.size(1) * ranks.count);
  return differentiable(
      "VocabParallelCrossEntropyBackward", {logits},
      [&] { return vocab_parallel_cross_entropy_forward(logits, labels, ranks); },
      [logits, labels, ranks, version = logits._version()](const at::Tensor& grad, const RowSums& row_sums) {
        BRAID_CHECK_EQ(logits._version(), version, "the logits of a cross entropy changed before its backward");
        return vocab_parallel_cross_entropy_backward(grad, logits, labels, row_sums, ranks);
      });
}

}  // namespace braid
