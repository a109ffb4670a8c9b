#pragma once

#include "kernels/matrix.h"

namespace braid::kernels {

// The columns of a vocabulary that this rank has the logits of, and the label of each row among all columns.
struct LabelledColumns {
  const std::int64_t* labels = nullptr;
  std::int64_t first = 0;       // column
  std::int64_t vocabulary = 0;  // columns on all ranks
  std::int64_t ignored = 0;     // a row with this label has no loss; labels outside the vocabulary make it NaN
};

// Of each row's logits here: the largest, the sum of exp(logit - max), and the label's logit, 0 if it is not here. The
// loss, log(sum) + max - found, is right if all columns are here. An ignored row is not read: its loss is 0.
struct RowResults {
  float *max = nullptr, *sum = nullptr, *found = nullptr, *loss = nullptr;
};
template <class T>
void cross_entropy_forward(const Matrix<const T>& logits, const LabelledColumns& columns, const RowResults& results,
                           cudaStream_t stream);

// logits = (exp(logits - max) / sum - [column == label]) * grad, in place; max and sum are over all columns on all
// ranks.
struct RowInputs {
  const float *max = nullptr, *sum = nullptr, *grad = nullptr;
};
template <class T>
void cross_entropy_backward(const Matrix<T>& logits, const LabelledColumns& columns, const RowInputs& inputs,
                            cudaStream_t stream);

}  // namespace braid::kernels
