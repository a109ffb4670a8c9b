// What is wrong with a training run before any rank starts, all at once.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dist/world_spec.h"
#include "run/recipe.h"

namespace braid {

struct StartRequest {
  RecipeSource source;
  std::string log_dir;
  bool oversubscribe = false;
};

struct StartProblems {
  std::vector<Problem> list{};
  bool ranks_can_meet = true;  // false without the GPUs that they are to meet on
};

// Without `spec` this process is going to start the ranks, and looks at everything. A rank of Braid's launcher finds
// nothing, since that has looked. Under another launcher every rank is its own starter: each looks at GPUs, the first
// of a host at the host's room, and rank 0 at files.
//
// Nothing is made: what the run writes to is tried, and what that leaves is removed.
StartProblems start_problems(const StartRequest& request, const Recipe& recipe, const Topology& topology,
                             const std::optional<WorldSpec>& spec);

// A key becomes the flag that was typed, or the line of the recipe; of several keys with spaces between them, those
// that were typed count.
std::vector<Problem> located(std::vector<Problem> problems, const RecipeSource& source);

}  // namespace braid
