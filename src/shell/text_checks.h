// What a shell text that was made for one process does wrong when every rank runs it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shell/program_call.h"

namespace braid {

// Whether bash must be told that a pipe fails with its first command, not only with its last.
bool has_pipe(const ShellCommands& commands);

// ConfigError where the program is left running when the shell ends, or is no program.
void refuse_background(std::string_view text, const ShellCommands& commands);
void refuse_empty_program(const ShellCommands& commands);

// Files, as written, that the program's output goes to by `| tee FILE` or `>FILE`, under one name for all ranks.
std::vector<std::string> shared_outputs(std::string_view text);

}  // namespace braid
