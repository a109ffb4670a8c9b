#include "nn/grouped_linear.h"

#include "base/error.h"
#include "ops/grouped_linear_fp8.h"

namespace braid {

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
