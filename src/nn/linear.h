// Linear maps split over tp, and the vocabulary split the same way. Weights are this rank's shards.
#pragma once

#include "nn/parallel.h"

namespace braid {

// Output features are split: each rank computes its own, from all rows.   [t, In] -> [T / cp, Out / tp]
at::Tensor column_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const Parallel& parallel);

// Input features are split: the ranks' products are summed; the bias, which every rank has whole, is added after.
// [T / cp, In / tp] -> [t, Out]
at::Tensor row_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const Parallel& parallel);

// Rows of an embedding whose vocabulary is split over tp; NaN for an id that no rank has.   ids: [T / cp] int64 -> [t,
// H]
at::Tensor embed(const at::Tensor& ids, const at::Tensor& weight, const Parallel& parallel);

// fc2(squared_relu(fc1(x))), fc1 split by columns and fc2 by rows.   [t, H] -> [t, H]
at::Tensor squared_relu_mlp(const at::Tensor& x, const at::Tensor& fc1, const at::Tensor& fc2,
                            const Parallel& parallel);

// fc2(swiglu(fc1(x))), where a rank's fc1 gives its share of the gate, then the same share of what it lets through.
at::Tensor swiglu_mlp(const at::Tensor& x, const at::Tensor& fc1, const at::Tensor& fc2, const Parallel& parallel);

}  // namespace braid
