// The command that trains in a script for Megatron-LM.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

struct ScriptWord {
  std::string text;
  bool has_variable = false;  // that only a shell knows
};

bool is_flag(const ScriptWord& word);    // --lr
bool is_option(const ScriptWord& word);  // -m too, but not -1 or -.5

// Of srun and mpirun: how many processes they start, as written.
struct LauncherTasks {
  std::string launcher, all, nodes, per_node;
};

struct TrainingCommand {
  std::vector<ScriptWord> words{};  // without srun or mpirun and their options
  LauncherTasks tasks{};
  std::vector<std::string> unused{};              // variables with flags that nothing uses
  std::vector<std::string> conditional{};         // assignments of flags in branches, as written
  std::vector<std::string> others{};              // other commands with flags
  std::map<std::string, std::string> defaults{};  // of variables: those that ${NAME:-default} gives
};

// The command with most flags of Megatron's. Lines of flags alone count too, since the text may be the middle of an
// array. A text of assignments alone stands for all of them. ConfigError for quotes that do not close.
TrainingCommand read_training_command(std::string_view text);

}  // namespace braid
