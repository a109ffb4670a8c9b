#include "nn/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/embedding.h>

#include <limits>

#include "ops/linear.h"

namespace braid {

at::Tensor Linear::operator()(const at::Tensor& x) const {
  if (split_ == Split::Columns) return linear(gather_sequence(x, *parallel_), weight_, bias_);
  const at::Tensor y = reduce_to_sequence(linear(x, weight_, {}), *parallel_);
  return bias_.defined() ? y + bias_ : y;
}

at::Tensor embed(const at::Tensor& ids, const at::Tensor& weight, const Parallel& parallel) {
  if (parallel.tp.size() == 1) return at::embedding(weight, ids);
  const std::int64_t rows = weight.size(0);
  const at::Tensor local = ids - parallel.tp.rank() * rows;
  const at::Tensor elsewhere = (local < 0).logical_or(local >= rows);
  at::Tensor found = at::embedding(weight, local.masked_fill(elsewhere, 0)).masked_fill(elsewhere.unsqueeze(1), 0);
  if (parallel.tp.rank() == 0) {  // otherwise an id that no rank holds would silently become zeros
    const at::Tensor nowhere = (ids < 0).logical_or(ids >= rows * parallel.tp.size());
    found = found.masked_fill(nowhere.unsqueeze(1), std::numeric_limits<double>::quiet_NaN());
  }
  return reduce_to_sequence(found, parallel);
}

}  // namespace braid
