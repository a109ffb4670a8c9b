// Finds sizes that a recipe must set because its provider is a model for tests; see size_keys().
#pragma once

#include <string>
#include <vector>

#include "models/providers.h"
#include "plan/topology_config.h"

namespace braid {

// `given`: the dotted keys that the file and the flags set. One problem per module lists all its missing sizes.
std::vector<Problem> missing_sizes(const Provider& model, const std::vector<ModuleConfig>& modules,
                                   const std::vector<std::string>& given);

}  // namespace braid
