// Converts a command line for Megatron-LM into a recipe.
#pragma once

#include <vector>

#include "base/config.h"
#include "cli/megatron_draft.h"

namespace braid {

// A valid recipe. `overrides` are Braid's own flags, which take precedence. ConfigError with all problems if the recipe
// would be invalid.
MegatronRecipe recipe_from_megatron(const MegatronCommand& command, const std::vector<ConfigOverride>& overrides);

}  // namespace braid
