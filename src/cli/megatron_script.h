// The command that trains in a script for Megatron-LM.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cli/launcher_tasks.h"
#include "cli/script_word.h"

namespace braid {

struct TrainingCommand {
  std::vector<ScriptWord> words{};  // without srun or mpirun and their options
  LauncherTasks tasks{};
  std::vector<std::string> unused{};              // variables and functions with flags that nothing uses
  std::vector<std::string> conditional{};         // assignments of flags in branches, as written
  std::vector<std::string> others{};              // other commands with flags
  std::vector<std::string> sourced{};             // files that may set variables, which are not read
  std::map<std::string, std::string> defaults{};  // of variables: those that ${NAME:-default} gives
};

// The command with most flags of Megatron's, also in a function, where it is first called, or in the text for bash -c
// or sbatch --wrap. Lines of flags alone count too, since the text may be the middle of an array. A text of assignments
// alone stands for all of them. ConfigError for quotes that do not close.
TrainingCommand read_training_command(std::string_view text);

}  // namespace braid
