#include "cluster/megatron/text_checks.h"

#include <algorithm>

#include "base/error.h"
#include "cluster/megatron/torchrun_call.h"

namespace braid {
namespace {

bool is_waited_for(const ShellCommands& commands, std::size_t program) {
  return std::any_of(
      commands.begin() + static_cast<std::ptrdiff_t>(program), commands.end(),
      [](const ShellCommand& command) { return command.words.size() > 1 && command.words[0].value == "wait"; });
}

bool names_the_rank(std::string_view raw) {
  for (const char* part : {"$RANK", "${RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "HOSTNAME",
                           "hostname", "SLURMD_NODENAME", "$$", "mktemp"})
    if (raw.find(part) != raw.npos) return true;
  return false;
}

// If the name contains a variable, the variable may contain the rank.
bool is_shared(std::string_view text, const ShellCommands& commands, const ShellWord& file) {
  if (file.value) return !file.value->empty() && !file.value->starts_with("/dev/") && !file.value->starts_with("-");
  if (names_the_rank(raw_of(text, file)) || raw_of(text, file).find('(') != std::string_view::npos) return false;
  for (const ShellCommand& command : commands)
    for (const ShellWord& word : command.assignments)
      if (names_the_rank(raw_of(text, word).substr(raw_of(text, word).find('=')))) return false;
  return true;
}

}  // namespace

bool has_pipe(const ShellCommands& commands) {
  return std::any_of(commands.begin(), commands.end(), [](const ShellCommand& command) { return command.reads_pipe; });
}

void refuse_background(std::string_view text, const ShellCommands& commands) {
  if (commands.empty()) return;
  const auto call = find_torchrun(text, commands);
  const std::size_t program = call ? call->command : commands.size() - 1;
  const ShellCommand& command = commands[program];
  if (!command.in_background || command.words.empty() || is_waited_for(commands, program)) return;
  throw ConfigError({fmt::format("'{}' is in the background: the run would end at once", excerpt(text, command)),
                     "the command", "leave out the & after it (and nohup), or end with: wait \"$!\""});
}

void refuse_empty_program(const ShellCommands& commands) {
  for (const ShellCommand& command : commands)
    if (!command.words.empty() && command.words[0].value == "")
      throw ConfigError({"the name of the program is empty", "the command", "give a program, or shell text"});
}

std::vector<std::string> shared_outputs(std::string_view text) {
  const ShellCommands commands = simple_commands(text);
  const auto call = find_torchrun(text, commands);
  std::vector<std::string> found;
  const auto look_at = [&](const ShellWord& file) {
    if (is_shared(text, commands, file)) found.emplace_back(raw_of(text, file));
  };
  for (std::size_t i = 0; i < commands.size(); ++i) {
    const ShellCommand& command = commands[i];
    if (command.words.empty()) continue;
    const bool is_tee = command.reads_pipe && base_name(command.words[0]) == "tee";
    for (std::size_t word = 1; is_tee && word < command.words.size(); ++word) look_at(command.words[word]);
    const bool all_that_follows = command.words.size() == 1 && command.words[0].value == "exec";
    if ((call && call->command == i) || all_that_follows)
      for (const ShellWord& file : command.outputs) look_at(file);
  }
  return found;
}

}  // namespace braid
