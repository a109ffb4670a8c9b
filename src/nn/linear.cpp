#include "nn/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>

#include <limits>

#include "ops/activation.h"

namespace braid {

at::Tensor column_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const Parallel& parallel) {
  return at::linear(gather_sequence(x, parallel), weight, bias);
}

at::Tensor row_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const Parallel& parallel) {
  const at::Tensor y = reduce_to_sequence(at::linear(x, weight), parallel);
  return bias.defined() ? y + bias : y;
}

at::Tensor embed(const at::Tensor& ids, const at::Tensor& weight, const Parallel& parallel) {
  if (parallel.tp.size() == 1) return at::embedding(weight, ids);
  const std::int64_t rows = weight.size(0);
  const at::Tensor local = ids - parallel.tp.rank() * rows;
  const at::Tensor elsewhere = (local < 0).logical_or(local >= rows);
  at::Tensor found = at::embedding(weight, local.masked_fill(elsewhere, 0)).masked_fill(elsewhere.unsqueeze(1), 0);
  if (parallel.tp.rank() == 0) {  // what no rank has would come out as zeros
    const at::Tensor nowhere = (ids < 0).logical_or(ids >= rows * parallel.tp.size());
    found = found.masked_fill(nowhere.unsqueeze(1), std::numeric_limits<double>::quiet_NaN());
  }
  return reduce_to_sequence(found, parallel);
}

at::Tensor squared_relu_mlp(const at::Tensor& x, const at::Tensor& fc1, const at::Tensor& fc2,
                            const Parallel& parallel) {
  return row_linear(squared_relu(column_linear(x, fc1, {}, parallel)), fc2, {}, parallel);
}

at::Tensor swiglu_mlp(const at::Tensor& x, const at::Tensor& fc1, const at::Tensor& fc2, const Parallel& parallel) {
  return row_linear(swiglu(column_linear(x, fc1, {}, parallel)), fc2, {}, parallel);
}

}  // namespace braid
