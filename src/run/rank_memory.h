// A lower bound of each rank's memory, from the declarations of its parameters: weights, gradients and optimizer state,
// without activations. No libtorch here.
#pragma once

#include <cstdint>
#include <vector>

#include "run/recipe.h"

namespace braid {

std::vector<std::int64_t> state_bytes(const Recipe& recipe, const Topology& topology);  // by global rank

}  // namespace braid
