#include "nn/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "ops/experts_fp8.h"
#include "ops/linear.h"
#include "ops/rows.h"

namespace braid {

namespace {

Recomputable gathered(const Recomputable& x, const Parallel& parallel) {
  return x.then([&parallel](const at::Tensor& own) { return gather_sequence(own, parallel); });
}

}  // namespace

at::Tensor Linear::operator()(const Recomputable& x) const {
  if (split_ == Split::Columns) {
    // A whole map in fp8 reads a factor once for both of its forms; its communication is not hidden.
    const bool in_one_piece = parallel_->sequence_parallel && x.value.size(0) > 0 && !weight_.fp8;
    return in_one_piece || is_cut(x.value.size(0), *parallel_) ? gather_and_multiply(x, weight_, bias_, *parallel_)
                                                               : linear(gathered(x, *parallel_), weight_, bias_);
  }
  if (parallel_->tp.size() == 1) return linear(x, weight_, bias_);  // the product adds the bias
  return branch(x).value();
}

Branch Linear::branch(const Recomputable& x, Result result) const {
  BRAID_CHECK(split_ == Split::Rows, "only a map of all ranks' features gives a branch");
  if (is_cut(x.value.size(0) / parallel_->tp.size(), *parallel_))
    return {multiply_and_scatter(x, weight_, *parallel_, result), bias_};
  return {reduce_to_sequence(linear(x, weight_, {}, result), *parallel_, result), bias_};
}

Branch Linear::gelu_branch(const Recomputable& x, const Linear& fc1, const Linear& fc2, Activation form,
                           bool recomputed, Result output) {
  if (is_cut(x.value.size(0), *fc1.parallel_)) {  // a piece's product cannot include the GELU
    const at::Tensor inner = fc1(x);
    return fc2.branch(recomputable([inner, form] { return activation(inner, form); }, recomputed), output);
  }
  const Recomputable input = gathered(x, *fc1.parallel_);
  LinearAndGelu result;
  Recomputable::Function again;
  if (recomputed) {  // from `inner`, which is rounded: the value that backward gets must be the one used here
    result.inner = linear(input, fc1.weight_, fc1.bias_);
    again = [inner = result.inner.detach(), form] { return activation_forward(inner, form); };
    result.activated = again();
  } else {
    result = linear_with_gelu(input, fc1.weight_, fc1.bias_, form);
  }
  const at::Tensor y = linear_of_gelu(result.inner, {result.activated, again}, form, fc2.weight_, {}, output);
  return {reduce_to_sequence(y, *fc2.parallel_, output), fc2.bias_};
}

at::Tensor Linear::of_rows(const at::Tensor& x, const at::Tensor& rows) const {
  BRAID_CHECK(split_ == Split::Columns, "only a map of whole tokens has rows to leave out");
  return linear(select_rows(gather_sequence(x, *parallel_), rows), weight_, bias_);
}

at::Tensor embed(const at::Tensor& ids, const Weight& weight, const Parallel& parallel) {
  return reduce_to_sequence(embedding(ids, weight, {parallel.tp.rank(), parallel.tp.size()}), parallel);
}

GroupedLinear::GroupedLinear(const Parameters& parameters, const std::string& prefix, Split split, int pieces)
    : weight_(parameters.weight(prefix + "weight")) {
  weight_.gradient_parts = pieces;
  const ParamSpec& spec = parameters.spec(prefix + "weight");
  BRAID_CHECK(spec.expert && spec.tp_dim == (split == Split::Columns ? 1 : 2), "{} is not split as its layer",
              spec.name);
}

at::Tensor GroupedLinear::operator()(const Recomputable& rows, const ExpertRows& experts, Result result) const {
  return weight_.fp8 ? grouped_linear_fp8(rows.value, weight_, experts, result)
                     : grouped_linear(rows, weight_, experts, result);
}

}  // namespace braid
