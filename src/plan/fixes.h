// Texts with which validate() suggests what to write instead: keys, and valid numbers near the given one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/topology_config.h"

namespace braid {

// "topology.modules.images.tp"; without a field, the module's key.
std::string key_of(const ModuleConfig& module, const std::string& field = "");

// "use a=1 or b=2"; empty choices are omitted.
std::string use_one_of(std::vector<std::string> choices);

// "use ep=2 or ep=4": the valid values next to the given one.
std::string nearest_of(const std::string& key, const std::vector<std::int64_t>& values, std::int64_t given);

// Unordered.
std::vector<std::int64_t> divisors(std::int64_t n);

// "images.dp=4": the data parallel size that gives the module this many ranks; empty if there is none.
std::string dp_for(const ModuleConfig& module, std::int64_t ranks);

// "tp=8 or less": the module's largest size, reduced to what the other sizes allow.
std::string smaller_size(ModuleConfig module);

// The expert parallel sizes that divide both the grid and the number of experts.
std::vector<std::int64_t> possible_ep(const ModuleConfig& module, int num_experts);

}  // namespace braid
