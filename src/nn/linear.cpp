#include "nn/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/linear_fp8.h"
#include "ops/select_rows.h"

namespace braid {
namespace {

at::Tensor multiply(const Recomputable& x, const Weight& weight, const at::Tensor& bias) {
  return weight.fp8 ? linear_fp8(x.value, weight, bias) : linear(x, weight, bias);
}

}  // namespace

at::Tensor Linear::operator()(const Recomputable& x) const {
  const auto gathered = [parallel = parallel_](const at::Tensor& own) { return gather_sequence(own, *parallel); };
  if (split_ == Split::Columns) return multiply(x.then(gathered), weight_, bias_);
  if (parallel_->tp.size() == 1) return multiply(x, weight_, bias_);  // the product adds the bias
  const at::Tensor y = reduce_to_sequence(multiply(x, weight_, {}), *parallel_);
  return bias_.defined() ? y + bias_ : y;
}

at::Tensor Linear::of_rows(const at::Tensor& x, const at::Tensor& rows) const {
  BRAID_CHECK(split_ == Split::Columns, "only a map of whole tokens has rows to leave out");
  return multiply(select_rows(gather_sequence(x, *parallel_), rows), weight_, bias_);
}

at::Tensor embed(const at::Tensor& ids, const Weight& weight, const Parallel& parallel) {
  return reduce_to_sequence(embedding(ids, weight, {parallel.tp.rank(), parallel.tp.size()}), parallel);
}

}  // namespace braid
