// braid launch: starts and monitors runs on a cluster.
#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/launch_commands.h"
#include "cli/tensor_commands.h"

namespace braid {

void add_launch_command(CLI::App& app, const std::vector<std::string>& command_line, int& exit_code) {
  CLI::App* launch = app.add_subcommand("launch", "Start a run on a cluster or on this machine, and monitor it");
  launch->require_subcommand(1);
  add_launch_slurm_command(*launch, command_line, exit_code);
  add_launch_interactive_command(*launch);
  launch->add_subcommand(kLaunchLocal.name, kLaunchLocal.help);
  add_launch_follow_commands(*launch);
}

}  // namespace braid
