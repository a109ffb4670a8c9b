#include "nn/grouped_linear.h"

#include "base/error.h"

namespace braid {

GroupedLinear::GroupedLinear(const Parameters& parameters, const std::string& prefix, Split split)
    : weight_(parameters.weight(prefix + "weight")) {
  const ParamSpec& spec = parameters.spec(prefix + "weight");
  BRAID_CHECK(spec.expert && spec.tp_dim == (split == Split::Columns ? 1 : 2), "{} is not split as its layer",
              spec.name);
}

}  // namespace braid
