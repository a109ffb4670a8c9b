// How a command that runs a recipe starts its ranks, or finds that it is one of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/start_problems.h"

namespace braid {

// ConfigError if other ranks were started than the topology has.
void check_world(const WorldSpec& spec, const Topology& topology);

// Whether this process ends here because of problems. It throws them as a ConfigError, unless another rank of this host
// reports them. Ranks of another launcher that can meet continue, to agree on it.
bool is_refused(const StartProblems& problems, const std::optional<WorldSpec>& spec);

// The command line for a rank, which reads the recipe again although it may have come from a pipe.
std::vector<std::string> rank_command(std::vector<std::string> command_line, const std::string& recipe_path,
                                      const RecipeSource& source);

}  // namespace braid
