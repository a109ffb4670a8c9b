// A call of torchrun, or of python -m torch.distributed.run or .launch, in a shell text.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/megatron/program_call.h"

namespace braid {

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
std::optional<TorchrunCall> find_torchrun(std::string_view text, const ShellCommands& commands);

bool calls_torchrun(std::string_view text);  // true even if the call cannot be parsed

}  // namespace braid
