// Collects the checks before the launch of a recipe or of a command.
#pragma once

#include <string>

#include "cluster/slurm/options.h"
#include "cluster/slurm/preflight.h"
#include "run/recipe.h"

namespace braid {

Preflight preflight_of(const Recipe& recipe, const SlurmOptions& options, const Allocation& allocation);
Preflight preflight_of(const std::string& command_text, const SlurmOptions& options, const Allocation& allocation);

// Partition and account, as Slurm on this machine knows them.
void check_with_slurm(const SlurmOptions& options, const Allocation& allocation, Preflight& preflight);

// Prints warnings and throws problems as a ConfigError; with `force`, problems are only warnings.
void settle(const Preflight& preflight, bool force);

}  // namespace braid
