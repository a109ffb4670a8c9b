// Which program a simple command of a shell text runs, as far as its words show, and calls of torchrun: `torchrun`, or
// python -m torch.distributed.run or .launch.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/megatron/shell_text.h"

namespace braid {

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

// An option of torchrun, as torch 2.11 parses it: enough to find where the options end and the program begins.
struct TorchrunOption {
  enum Kind {
    World,    // number of ranks and rendezvous: the launcher sets these
    Program,  // how the program is run: -m, --no-python
    Own,      // torchrun's other features: restarts, log files
  };
  std::string_view name;  // with dashes; underscores are the same
  bool takes_value;
  Kind kind;
  char letter = '\0';  // -m
};

const TorchrunOption* exact_torchrun_option(std::string_view name);  // full name only, with - or _; null: none

struct TorchrunCall {
  std::size_t command = 0, launcher = 0;  // the words `torchrun` or `python` in `-m torch.distributed.run`
  std::size_t first_option = 0;           // the word at which torchrun's options begin
  bool with_module = false;               // called by python -m
  bool is_launch = false;                 // torch.distributed.launch
  bool module = false, no_python = false, use_env = false, virtual_local_rank = false;
  std::string ranks_per_node{}, nodes{};
  std::vector<std::string> program_options{}, own_options{};  // as written: TorchrunOption::Program, ::Own
  ShellWord program{};
};

// The only call in the text. ConfigError if there are several, or if the start of its program cannot be determined.
std::optional<TorchrunCall> find_torchrun(const ShellCommands& commands);

bool calls_torchrun(std::string_view text);  // true even if the call cannot be parsed

}  // namespace braid
