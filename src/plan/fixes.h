// The words with which validate() says what to write instead: keys, and numbers near the given one that would
// work.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/topology.h"

namespace braid {

// "topology.modules.images.tp", or without a field the module itself.
std::string key_of(const ModuleConfig& module, const std::string& field = "");

// "use a=1 or b=2", leaving out empty choices.
std::string use_one_of(std::vector<std::string> choices);

// "use ep=2 or ep=4": of the values that would do, those next to the one given.
std::string nearest_of(const std::string& key, const std::vector<std::int64_t>& values, std::int64_t given);

// In no particular order.
std::vector<std::int64_t> divisors(std::int64_t n);

// "images.dp=4": the data parallel size that gives the module this many ranks; empty where there is none.
std::string dp_for(const ModuleConfig& module, std::int64_t ranks);

// "tp=8 or less": the largest size, cut to what the other sizes leave room for.
std::string smaller_size(ModuleConfig module);

// The expert parallel sizes that split both the grid and the experts evenly.
std::vector<std::int64_t> possible_ep(const ModuleConfig& module, int num_experts);

}  // namespace braid
