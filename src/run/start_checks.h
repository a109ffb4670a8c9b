// What is looked at before any rank starts: whether the checkpoint to load is there, sound as far as its small files
// tell, of this model and of this schedule. `where` of each problem is a dotted recipe key, or several with spaces
// between them. No libtorch here.
#pragma once

#include <string>
#include <vector>

#include "run/recipe.h"

namespace braid {

// Tensors are not read here: damage of theirs is found by the ranks.
std::vector<Problem> load_problems(const Recipe& recipe, const Topology& topology);

}  // namespace braid
