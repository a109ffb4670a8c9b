// The subcommands of `braid launch`.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace braid {

void add_launch_slurm_command(CLI::App& launch, const std::vector<std::string>& command_line, int& exit_code);

}  // namespace braid
