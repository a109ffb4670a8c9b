#pragma once

#include "plan/topology.h"

namespace braid::testing {

struct GridSizes {
  int tp = 1, cp = 1, dp = 1, ep = 1, expt_tp = 1, pp = 1, vpp = 1;
  int ranks() const { return tp * cp * dp * pp; }
};

inline ModuleConfig module_of(const std::string& name, ModuleKind kind, const GridSizes& sizes) {
  ModuleConfig module;
  module.name = name;
  module.kind = kind;
  module.tp = sizes.tp;
  module.cp = sizes.cp;
  module.dp = sizes.dp;
  module.ep = sizes.ep;
  module.expt_tp = sizes.expt_tp;
  module.pp = sizes.pp;
  module.vpp = sizes.vpp;
  return module;
}

}  // namespace braid::testing
