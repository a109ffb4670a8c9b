// What ranks need of memory at least, from the declarations of their parameters: weights, gradients and optimizer
// state. Activations come on top. No libtorch here.
#pragma once

#include <cstdint>
#include <vector>

#include "run/recipe.h"

namespace braid {

std::vector<std::int64_t> state_bytes(const Recipe& recipe, const Topology& topology);  // by global rank

}  // namespace braid
