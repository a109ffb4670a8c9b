// The modules of a topology without its process groups, whose number grows with the world: for counts that concern a
// few ranks of a large one.
#pragma once

#include <vector>

#include "plan/topology_config.h"

namespace braid {

struct Module;  // plan/topology.h

// Throws a ConfigError with all problems that validate() finds.
std::vector<Module> make_modules(const TopologyConfig& config, const Workload& workload);

}  // namespace braid
