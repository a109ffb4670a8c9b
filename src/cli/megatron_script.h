// Finds the training command in a script for Megatron-LM.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

struct ScriptWord {
  std::string text;
  bool has_variable = false;  // that only a shell can expand
};

bool is_flag(const ScriptWord& word);    // --lr
bool is_option(const ScriptWord& word);  // -m too, but not -1 or -.5

// How many processes srun or mpirun starts, as written.
struct LauncherTasks {
  std::string launcher, all, nodes, per_node;
};

struct TrainingCommand {
  std::vector<ScriptWord> words{};  // without srun or mpirun and their options
  LauncherTasks tasks{};
  std::vector<std::string> unused{};              // unused variables that contain flags
  std::vector<std::string> conditional{};         // assignments of flags in branches, as written
  std::vector<std::string> others{};              // other commands with flags
  std::map<std::string, std::string> defaults{};  // of variables, from ${NAME:-default}
};

// The command with the most Megatron flags. Lines of only flags count as commands too, since the text may be part of an
// array. If the text has only assignments, the flags of all of them are used. ConfigError for unclosed quotes.
TrainingCommand read_training_command(std::string_view text);

}  // namespace braid
