// Reads what a script starts by running it: `bash SCRIPT` with stand-ins for python, torchrun, srun, sbatch and similar
// programs, which record how they are called and do nothing. Everything else in the script is executed.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace braid {

inline constexpr const char* kRunScript = "--run-script";
inline constexpr const char* kRunScriptHelp =
    "a script, with its arguments in the same quoted word: bash runs it HERE, with all its commands, except that "
    "python, "
    "torchrun, srun, sbatch and similar programs only record how they are called";

struct RecordedCall {
  std::vector<std::string> words{};                  // the program's name and its arguments
  std::string folder{};                              // in which it was called
  std::map<std::string, std::string> environment{};  // variables that the script has set or changed
};

struct ScriptRun {
  std::string path, text;           // of the script
  std::vector<RecordedCall> calls;  // in the order of the calls; at least one
};

// `script` is a path, or a path and arguments as shell words. ConfigError if it cannot be read, fails, exceeds the
// limit or calls none of the programs.
ScriptRun run_script(const std::string& script, std::chrono::seconds limit = std::chrono::seconds(60));

// Shell text that calls the same program in the same folder and environment. ConfigError if the script starts several
// different programs.
std::string started_command(const ScriptRun& run);

}  // namespace braid
