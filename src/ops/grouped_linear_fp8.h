#pragma once

#include "ops/grouped_linear.h"
#include "ops/quantize.h"

namespace braid {

// grouped_linear() with both factors of its three products in fp8, as linear_fp8(). Scales by feature are those of all
// experts' rows together. Features are multiples of 16. Without rows it is grouped_linear() itself.
at::Tensor grouped_linear_fp8(const at::Tensor& rows, const Weight& weight, const ExpertRows& experts,
                              Result result = Result::Needed);

// Of rows that are in fp8 already.
at::Tensor grouped_linear_fp8_forward(const Fp8Matrix& rows, const Weight& weight, const ExpertRows& experts,
                                      bool rows_want_gradient);

struct GroupedFp8Saved {
  Fp8Matrix columns;       // of the rows, if the weight requires a gradient
  at::Tensor padded_ends;  // [E] int32, where the experts' rows end in it, on a GPU
};
// As grouped_linear_backward. The gradient has rows if those of the map require one, and columns if the weight does.
Tensors grouped_linear_fp8_backward(const Fp8Pair& grad, const GroupedFp8Saved& saved, const Weight& weight,
                                    const ExpertRows& experts);

// Whether an fp8 product can take these experts' widths.   weight: [E, Out, In]
void check_fp8_features(const at::Tensor& weight);

}  // namespace braid
