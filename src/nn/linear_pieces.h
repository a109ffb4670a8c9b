// Linear maps between a sequence that tp splits and its tensor-parallel region, cut into pieces so that communication
// overlaps with products. A piece has the same rows of every rank's share.
//
//   gather_and_multiply   forward: while a piece is multiplied, the next ones are gathered. Backward: while the input
//                         gradient of a piece is computed, that of the one before is summed and scattered; that of the
//                         last one, which may be the only one, during the product of the weight's gradient.
//   multiply_and_scatter  forward: while a piece is multiplied, the one before is summed and scattered. Backward: while
//                         the input gradient of a piece is computed, the next ones of the output's gradient are
//                         gathered.
//
// Each row is the same sum of products as in the whole map. The gradient of the weight is one product of all rows.
#pragma once

#include "nn/parallel.h"
#include "tensor/recomputable.h"
#include "tensor/weight.h"

namespace braid {

// Whether a linear map has more than one piece if every tp rank holds `rows` rows of the sequence.
bool is_cut(std::int64_t rows, const Parallel& parallel);

// As linear() of gather_sequence(), with one piece or more. There is sequence parallelism, and a row.
// [t, In] -> [T / cp, Out / tp]
at::Tensor gather_and_multiply(const Recomputable& x, const Weight& weight, const at::Tensor& bias,
                               const Parallel& parallel);
// As reduce_to_sequence() of linear(), the same.   [T / cp, In / tp] -> [t, Out]
at::Tensor multiply_and_scatter(const Recomputable& x, const Weight& weight, const Parallel& parallel,
                                Result result = Result::Needed);

}  // namespace braid
