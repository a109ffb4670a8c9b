// braid-tensors: the subcommands of braid that need libtorch. Started by braid, not by users.
#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/launch_commands.h"
#include "cli/plan_commands.h"
#include "cli/program.h"

namespace {

void add_commands(CLI::App& app, const std::vector<std::string>& command_line, int& exit_code) {
  app.set_version_flag("--version", [] { return braid::version_text(); });
  braid::add_train_command(app, command_line, exit_code);
  braid::add_eval_command(app, command_line, exit_code);
  braid::add_run_command(app, exit_code);
  braid::add_ckpt_command(app, exit_code);
  braid::add_forward_command(app, command_line, exit_code);
  CLI::App* launch = app.add_subcommand("launch", "");
  braid::add_launch_local_command(*launch, command_line, exit_code);
  CLI::App* plan = app.add_subcommand("plan", "");
  braid::add_plan_calibrate_command(*plan, exit_code);
}

}  // namespace

int main(int argc, char** argv) {
  braid::open_missing_streams();
  return braid::run_program(argc, argv, add_commands);
}
