// Which program a simple command of a shell text runs, as far as its words show.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/megatron/text.h"

namespace braid {

using ShellCommands = std::vector<ShellCommand>;

std::string_view raw_of(std::string_view text, const ShellWord& word);    // as written
std::string excerpt(std::string_view text, const ShellCommand& command);  // its beginning, for messages

// The last component of a path if it is known, also for "$VENV/bin/python".
std::string base_name(const ShellWord& word);

bool is_python_name(const std::string& name);
bool is_wrapper(const std::string& name);           // runs the command that follows it: env, uv, nohup
bool starts_ranks_itself(const std::string& name);  // srun, mpirun, accelerate

// The index of the actual program: after `uv run`, `env`, `exec` and similar wrappers, if there are any.
std::size_t program_index(const ShellCommand& command);

struct PythonCall {
  std::size_t what = 0;  // the word that names what is run: a file, a module, or -c
  bool module = false;
  bool has_options = false;  // other than -u
  std::string module_name{};
};

// What the python at this word runs; empty if it has no arguments or they are unknown.
std::optional<PythonCall> python_call(const std::vector<ShellWord>& words, std::size_t python);

}  // namespace braid
