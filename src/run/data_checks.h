// Checks before any rank starts. Braid must be able to read a recipe's data set and tokenizer, both must fit the model,
// and every lane must have samples. No libtorch here.
#pragma once

#include <vector>

#include "run/lane_options.h"

namespace braid {

// Opens the splits for these uses, and reads no samples. `where` of each problem is a dotted recipe key, or several
// separated by spaces.
std::vector<Problem> data_problems(const Recipe& recipe, const Topology& topology, const std::vector<DataUse>& uses);

// Training, and evaluation if the recipe evaluates.
std::vector<DataUse> data_uses(const Recipe& recipe);

}  // namespace braid
