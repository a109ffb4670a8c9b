#include "ops/rows.h"
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include "base/error.h"
#include "kernels/rows.h"
#include "ops/has_kernel.h"

namespace braid {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// The row that holds an id; any row for an id of another shard.
at::Tensor rows_of(const at::Tensor& ids, const at::Tensor& weight) { return ids.remainder(weight.size(0)); }

at::Tensor is_elsewhere(const at::Tensor& ids, const at::Tensor& weight, const VocabularyShard& shard) {
  return (ids.div(weight.size(0), "floor") != shard.index).unsqueeze(1);
}

kernels::VocabularySlice slice_of(const VocabularyShard& shard, const at::Tensor& weight) {
  return {shard.index * weight.size(0), shard.count * weight.size(0)};
}

at::Tensor sum_by_row(const at::Tensor& grads, const at::Tensor& rows, std::int64_t count) {
  return at::embedding_dense_backward(grads, rows, count, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false);
}

// sum[rows[i]] += grads[i], with the same bits in every run. On a GPU, index_add_ adds in no fixed order, and
// index_put_ adds the gradients of one row one after the other, which takes long for an image's many equal ids. So the
// gradients of a row are first summed at its first token; then a row has one addend that is not zero.
void add_to_rows(at::Tensor sum, const at::Tensor& rows, const at::Tensor& grads) {
  const std::int64_t tokens = rows.size(0);
  const at::Tensor first_token = at::full({sum.size(0)}, tokens, rows.options())
                                     .scatter_reduce_(0, rows, at::arange(tokens, rows.options()), "amin");
  const at::Tensor wide = grads.to(sum.scalar_type());
  sum.index_add_(0, rows, sum_by_row(wide, first_token.index_select(0, rows), tokens));
}

// Row i is there[numbers[i]], or elsewhere[i] where the number is negative; of an undefined tensor, zeros.
at::Tensor pick_rows(const at::Tensor& numbers, const at::Tensor& there, const at::Tensor& elsewhere) {
  const at::Tensor& like = there.defined() ? there : elsewhere;
  return fill<kernels::pick_rows>(like.new_empty({numbers.size(0), like.size(1)}), numbers.contiguous(),
                                  with_dense_rows(there), with_dense_rows(elsewhere));
}

at::Tensor is_negative(const at::Tensor& numbers) { return (numbers < 0).unsqueeze(1); }

// The numbered rows of x; zeros for negative numbers.
at::Tensor rows_at(const at::Tensor& x, const at::Tensor& numbers) {
  if (x.size(0) == 0) return at::zeros({numbers.size(0), x.size(1)}, x.options());
  return x.index_select(0, numbers.clamp_min(0)).masked_fill_(is_negative(numbers), 0);
}

at::Tensor select_rows_backward(const at::Tensor& grad, const at::Tensor& rows, std::int64_t count) {
  const at::Tensor numbers = at::arange(rows.size(0), rows.options());
  const at::Tensor number_of = at::full({count}, -1, rows.options()).index_copy_(0, rows, numbers);
  // A row of x that was not selected has no place in the gradient, and gets zeros.
  const RowPlaces places = {.row_of = rows, .place_of = number_of};
  return put_rows_backward(grad, places, {.x_grad = false})[1];
}

}  // namespace

at::Tensor embedding_forward(const at::Tensor& ids, const at::Tensor& weight, const VocabularyShard& shard) {
  if (has_kernel({weight}))
    return fill<kernels::embedding_forward>(weight.new_empty({ids.size(0), weight.size(1)}), ids.contiguous(),
                                            slice_of(shard, weight), weight);
  const at::Tensor found = weight.index_select(0, rows_of(ids, weight));
  const at::Tensor is_nowhere = (ids < 0).logical_or(ids >= weight.size(0) * shard.count).unsqueeze(1);
  const at::Tensor other = at::zeros_like(is_nowhere, weight.scalar_type()).masked_fill_(is_nowhere, kNaN);
  return at::where(is_elsewhere(ids, weight, shard), other, found);
}

at::Tensor embedding_backward(const at::Tensor& grad, const at::Tensor& ids, const Weight& weight,
                              const VocabularyShard& shard) {
  if (has_kernel({grad, weight.value}) && has_kernel({weight.sum->value})) {
    const auto add = [&](const at::Tensor& sum) {
      return fill<kernels::embedding_backward>(sum, with_dense_rows(grad), ids.contiguous(), slice_of(shard, sum));
    };
    return weight.sum->add_by(add) ? at::Tensor() : add(at::zeros_like(weight.value));
  }
  const at::Tensor rows = rows_of(ids, weight.value);
  const at::Tensor own = grad.masked_fill(is_elsewhere(ids, weight.value, shard), 0);
  if (weight.sum->add_by([&](const at::Tensor& sum) { add_to_rows(sum, rows, own); })) return {};
  return sum_by_row(own, rows, weight.value.size(0));
}

at::Tensor embedding(const at::Tensor& ids, const Weight& weight, const VocabularyShard& shard) {
  BRAID_CHECK(ids.dim() == 1 && weight.value.dim() == 2, "ids are [tokens], a vocabulary is [words, features]");
  return differentiable(
      "EmbeddingBackward", {weight.value}, [&] { return embedding_forward(ids, weight.value, shard); },
      [ids, weight, shard](const at::Tensor& grad) { return embedding_backward(grad, ids, weight, shard); });
}

at::Tensor put_rows_forward(const at::Tensor& x, const at::Tensor& rows, const at::Tensor& row_of) {
  if (has_kernel({x, rows})) return pick_rows(row_of, rows, x);
  return at::where(is_negative(row_of), x, rows_at(rows, row_of));
}

Tensors put_rows_backward(const at::Tensor& grad, const RowPlaces& places, const PutRowsNeeds& needs) {
  if (has_kernel({grad}))
    return {needs.x_grad ? pick_rows(places.row_of, {}, grad) : at::Tensor(),
            needs.rows_grad ? pick_rows(places.place_of, grad, {}) : at::Tensor()};
  return {needs.x_grad ? grad.masked_fill((places.row_of >= 0).unsqueeze(1), 0) : at::Tensor(),
          needs.rows_grad ? rows_at(grad, places.place_of) : at::Tensor()};
}

at::Tensor put_rows(const at::Tensor& x, const at::Tensor& rows, const RowPlaces& places) {
  BRAID_CHECK_EQ(x.size(0), places.row_of.size(0), "places for rows");
  BRAID_CHECK_EQ(rows.size(0), places.place_of.size(0), "rows to put in their places");
  BRAID_CHECK_EQ(x.size(1), rows.size(1), "the width of rows to put in their places");
  const PutRowsNeeds needs = {x.requires_grad(), rows.requires_grad()};
  return differentiable(
      "PutRowsBackward", {x, rows}, [&] { return put_rows_forward(x, rows, places.row_of); },
      [places, needs](const at::Tensor& grad) { return put_rows_backward(grad, places, needs); });
}

at::Tensor select_rows(const at::Tensor& x, const at::Tensor& rows) {
  return differentiable(
      "SelectRowsBackward", {x}, [&] { return x.index_select(0, rows); },
      [rows, count = x.size(0)](const at::Tensor& grad) { return select_rows_backward(grad, rows, count); });
}

}  // namespace braid
