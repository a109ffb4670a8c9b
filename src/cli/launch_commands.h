// What the subcommands of `braid launch` share.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "cli/command.h"
#include "cluster/slurm/options.h"
#include "cluster/slurm/preflight.h"
#include "cluster/slurm/script.h"
#include "run/recipe.h"

namespace braid {

Command launch_slurm_command();

// The checks before the launch of a recipe or of a command.
Preflight preflight_of(const Recipe& recipe, const SlurmOptions& options, const Allocation& allocation);
Preflight preflight_of(const std::string& command_text, const SlurmOptions& options, const Allocation& allocation);

// Partition and account, as Slurm on this machine knows them.
void check_with_slurm(const SlurmOptions& options, const Allocation& allocation, Preflight& preflight);

void print_warning(const Problem& problem);
// Prints warnings and throws problems as a ConfigError; with `force`, problems are only warnings.
void settle(const Preflight& preflight, bool force);

// `recipe` is the result of `recipe_path` and `overrides`, as in braid train. options.nodes must be set. ConfigError if
// the recipe's ranks do not divide evenly among the nodes.
SlurmJob job_of_recipe(const SlurmOptions& options, const std::string& recipe_path, const Recipe& recipe,
                       const std::vector<std::string>& overrides);

// Writes options.output atomically, executable by its owner only, and creates the log folder. ConfigError if the file
// exists and was not made by Braid.
void write_script(const SlurmOptions& options, const std::string& text);

// "braid", or the path it was called by: for commands to copy.
std::string called_as();

// Calls sbatch and prints how to follow the job; returns an exit code.
int submit_script(const SlurmOptions& options);

}  // namespace braid
