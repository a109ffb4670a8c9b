#pragma once

#include <vector>

#include "train/recipe.h"

namespace braid {

class World;
class Topology;

// The training loop as one rank runs it: build, step, log. Returns the loss of every iteration.
std::vector<double> train(const Recipe& recipe, const Topology& topology, World& world);

}  // namespace braid
