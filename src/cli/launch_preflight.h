// The checks before a launch, put together for what is to be launched.
#pragma once

#include <string>

#include "slurm/preflight.h"
#include "slurm/options.h"
#include "run/recipe.h"

namespace braid {

Preflight preflight_of(const Recipe& recipe, const SlurmOptions& options, const Allocation& allocation);
Preflight preflight_of(const std::string& command_text, const SlurmOptions& options, const Allocation& allocation);

// Partition and account, as Slurm on this machine knows them.
void check_with_slurm(const SlurmOptions& options, const Allocation& allocation, Preflight& preflight);

// Prints warnings; what is a problem becomes a ConfigError, unless forced: then it is a warning too.
void settle(const Preflight& preflight, bool force);

}  // namespace braid
