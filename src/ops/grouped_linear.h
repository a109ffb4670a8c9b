// The products of experts with their rows. E experts, R rows that are sorted by expert.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/autograd.h"
#include "tensor/weight.h"

namespace braid {

// How many rows each expert has: on the host for loops, and as end offsets on the device for kernels, so that nothing
// is copied between the two later.
struct ExpertRows {
  std::vector<std::int64_t> counts;
  at::Tensor ends;  // [E] int32
};

// The rows of each expert e times weight[e]^T.   rows: [R, In], weight: [E, Out, In] -> [R, Out]
at::Tensor grouped_linear(const at::Tensor& rows, const Weight& weight, const ExpertRows& experts);
at::Tensor grouped_linear_forward(const at::Tensor& rows, const at::Tensor& weight, const ExpertRows& experts);
// Gradients of rows and weight. Each expert's part of the weight's is added to its slice of the weight's sum; without a
// sum it is returned. Saved: the rows if the weight requires a gradient, else undefined.
Tensors grouped_linear_backward(const at::Tensor& grad, const at::Tensor& rows, const Weight& weight,
                                const ExpertRows& experts, bool rows_want_gradient);

}  // namespace braid
