#pragma once

#include "ops/grouped_linear.h"
#include "ops/quantize.h"

namespace braid {

// grouped_linear() with both factors of its three products in fp8, as linear_fp8(). Scales by feature are those of all
// experts' rows together. Features are multiples of 16, and there is at least one row.
at::Tensor grouped_linear_fp8(const at::Tensor& rows, const Weight& weight, const ExpertRows& experts);

struct GroupedFp8Saved {
  Fp8Matrix columns;       // of the rows, if the weight requires a gradient
  at::Tensor padded_ends;  // [E] int32, where the experts' rows end in it, on a GPU
};
OutputAndSaved<GroupedFp8Saved> grouped_linear_fp8_forward(const at::Tensor& rows, const Weight& weight,
                                                           const ExpertRows& experts, bool rows_want_gradient,
                                                           bool weight_wants_gradient);
// As grouped_linear_backward.
Tensors grouped_linear_fp8_backward(const at::Tensor& grad, const GroupedFp8Saved& saved, const Weight& weight,
                                    const ExpertRows& experts, bool rows_want_gradient);

}  // namespace braid
