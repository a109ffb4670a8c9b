// Finds what goes wrong when every rank runs a shell text that was written for one process.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cluster/megatron/program_call.h"

namespace braid {

// Whether bash needs pipefail, so that a pipe also fails with its first command.
bool has_pipe(const ShellCommands& commands);

// ConfigError if the program keeps running when the shell ends, or if its name is empty.
void refuse_background(std::string_view text, const ShellCommands& commands);
void refuse_empty_program(const ShellCommands& commands);

// The files, as written, that all ranks would write the program's output to, by `| tee FILE` or `>FILE`.
std::vector<std::string> shared_outputs(std::string_view text);

}  // namespace braid
