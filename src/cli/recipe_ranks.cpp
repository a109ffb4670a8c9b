#include "cli/recipe_ranks.h"

#include <algorithm>

#include "base/files.h"
#include "base/strings.h"

namespace braid {

void check_world(const WorldSpec& spec, const Topology& topology) {
  if (spec.size == topology.world_size()) return;
  const std::string ranks = counted(topology.world_size(), "rank");
  throw ConfigError({fmt::format("the recipe's topology has {}, but {} {} started", ranks, spec.size,
                                 spec.size == 1 ? "was" : "were"),
                     "topology", fmt::format("start {}, or change the module sizes", ranks)});
}

bool is_refused(const StartProblems& problems, const std::optional<WorldSpec>& spec) {
  if (problems.list.empty() || (spec && problems.ranks_can_meet)) return false;
  if (!spec || spec->local_rank == 0) throw ConfigError(problems.list);
  return true;
}

std::vector<std::string> rank_command(std::vector<std::string> command_line, const std::string& recipe_path,
                                      const RecipeSource& source) {
  *std::find(command_line.begin(), command_line.end(), recipe_path) = reopenable(source.path, source.text);
  return command_line;
}

}  // namespace braid
