// Which program a simple command of a shell text runs, as far as its words tell.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shell/text.h"

namespace braid {

using ShellCommands = std::vector<ShellCommand>;

std::string_view raw_of(std::string_view text, const ShellWord& word);    // as written
std::string excerpt(std::string_view text, const ShellCommand& command);  // its beginning, for messages

// The last part of a path, where it is known: of "$VENV/bin/python" too.
std::string base_name(const ShellWord& word);

bool is_python_name(const std::string& name);
bool is_wrapper(const std::string& name);           // runs the command behind it: env, uv, nohup
bool starts_ranks_itself(const std::string& name);  // srun, mpirun, accelerate

// The word of the program that counts: behind `uv run`, `env`, `exec` and the like where one is there.
std::size_t program_index(const ShellCommand& command);

struct PythonCall {
  std::size_t what = 0;  // the word that says what is run: a file, a module, or -c
  bool module = false;
  bool has_options = false;  // other than -u
  std::string module_name{};
};

// What the python at this word is asked to run; nothing when it has no arguments or they cannot be known.
std::optional<PythonCall> python_call(const std::vector<ShellWord>& words, std::size_t python);

}  // namespace braid
