#include "plan/collective.h"

#include <algorithm>

#include "base/strings.h"
#include "plan/topology.h"

namespace braid {

int group_size(const Module& module, const std::string& key) {
  const auto& dense = module.dense.dims();
  int size = 1;
  for (const std::string& dim : split(key, '-')) {
    const bool is_dense = std::any_of(dense.begin(), dense.end(), [&](const Dim& d) { return d.name == dim; });
    size *= (is_dense ? module.dense : module.expert).size_of(dim);
  }
  return size;
}

}  // namespace braid
