// Collects all problems of a training run before any rank starts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/world_spec.h"
#include "run/output_files.h"
#include "run/recipe.h"

namespace braid {

struct StartRequest {
  RecipeSource source;
  std::string log_dir;
  bool oversubscribe = false;
  bool only_evaluates = false;
  std::vector<OutputFile> outputs{};  // besides the log folder and what the recipe names
};

struct StartProblems {
  std::vector<Problem> list{};
  bool ranks_can_meet = true;           // false if the GPUs for the rendezvous are missing
  std::vector<std::string> warnings{};  // which do not keep the run from starting
};

// Without `spec`, this process will start the ranks and checks everything. A rank of Braid's launcher checks nothing,
// since the launcher has done so. Under another launcher, every rank checks its GPUs, the first rank of a host checks
// its cores and memory, and rank 0 checks files.
//
// Output paths are tested by writing; everything created for that is removed.
StartProblems start_problems(const StartRequest& request, const Recipe& recipe, const Topology& topology,
                             const std::optional<WorldSpec>& spec);

// Replaces a key in `where` by the flag on the command line, or by the line of the recipe; of several keys separated by
// spaces, those on the command line count.
std::vector<Problem> located(std::vector<Problem> problems, const RecipeSource& source);

}  // namespace braid
