// How many processes srun and mpirun start.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/script_word.h"

namespace braid {

// How many processes srun or mpirun starts, as written.
struct LauncherTasks {
  std::string launcher, all, nodes, per_node;
};

// From options like --nodes 4, -n16.
void take_counts(const std::vector<ScriptWord>& options, LauncherTasks& tasks);

// Removes srun or mpirun and their options from the front of a command, and returns how many tasks they start.
LauncherTasks take_launcher(std::vector<ScriptWord>& words, const LauncherTasks& of_sbatch);

// What srun inherits: the lines "#SBATCH --nodes=4" before the first command.
LauncherTasks sbatch_tasks(std::string_view text);

}  // namespace braid
