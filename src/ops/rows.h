// Rows that are looked up by number.
#pragma once

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

// Where rows of one matrix ([N, H]) replace rows of another ([T, H]).
struct RowPlaces {
  at::Tensor row_of;    // [T] int64: the row that comes to a place; negative: the place keeps its own
  at::Tensor place_of;  // [N] int64: the inverse, the place of a row; negative: it has none
};

// x with `rows` in their places.   [T, H], [N, H] -> [T, H]
at::Tensor put_rows(const at::Tensor& x, const at::Tensor& rows, const RowPlaces& places);
at::Tensor put_rows_forward(const at::Tensor& x, const at::Tensor& rows, const at::Tensor& row_of);
// Saved: places, and which of the two gradients are needed; the others are undefined.
struct PutRowsNeeds {
  bool x_grad = true, rows_grad = true;
};
Tensors put_rows_backward(const at::Tensor& grad, const RowPlaces& places, const PutRowsNeeds& needs);

// Some rows of x, in the order of `rows` ([n] int64), which names none twice.   [T, H] -> [n, H]
at::Tensor select_rows(const at::Tensor& x, const at::Tensor& rows);

}  // namespace braid
