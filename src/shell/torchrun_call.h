// A call of torchrun, or of python -m torch.distributed.run or .launch, in a shell text.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shell/program_call.h"

namespace braid {

struct TorchrunCall {
  std::size_t command = 0, launcher = 0;  // the words `torchrun` or `python` in `-m torch.distributed.run`
  std::size_t first_option = 0;           // the word at which torchrun's options begin
  bool with_module = false;               // by python -m
  bool is_launch = false;                 // torch.distributed.launch
  bool module = false, no_python = false, use_env = false, virtual_local_rank = false;
  std::string ranks_per_node{}, nodes{};
  std::vector<std::string> program_options{}, own_options{};  // as written: TorchrunOption::Program, ::Own
  ShellWord program{};
};

// The one call that there is. ConfigError when there are several, or when it cannot be told where its program begins.
std::optional<TorchrunCall> find_torchrun(std::string_view text, const ShellCommands& commands);

bool calls_torchrun(std::string_view text);  // also when what it says cannot be understood

}  // namespace braid
