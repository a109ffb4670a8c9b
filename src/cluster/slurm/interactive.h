// The commands of an interactive session on a cluster.
#pragma once

#include <string>

#include "cluster/slurm/options.h"

namespace braid {

// salloc, srun for a shell on the nodes (in the container), and what to type there first; each with a comment. Relative
// paths start at options.workdir.
std::string interactive_commands(const SlurmOptions& given);

}  // namespace braid
