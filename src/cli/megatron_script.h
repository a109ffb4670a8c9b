// Finds the training command in a script for Megatron-LM.
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
  std::vector<std::string> unused{};              // unused variables and functions that contain flags
  std::vector<std::string> conditional{};         // assignments of flags in branches, as written
  std::vector<std::string> others{};              // other commands with flags
  std::vector<std::string> sourced{};             // files that may set variables, which are not read
  std::map<std::string, std::string> defaults{};  // of variables, from ${NAME:-default}
};

// The command with the most Megatron flags, also in a function (read where it is first called) or in the text for
// bash -c or sbatch --wrap. Lines of only flags count as commands too, since the text may be part of an array. If the
// text has only assignments, the flags of all of them are used. ConfigError for unclosed quotes.
TrainingCommand read_training_command(std::string_view text);

}  // namespace braid
