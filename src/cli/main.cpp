// braid: one file per subcommand. Subcommands that use tensors, or serve ranks that do, are in braid-tensors.
#include <CLI/CLI.hpp>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "base/error.h"
#include "base/process.h"
#include "cli/commands.h"
#include "cli/launch_commands.h"
#include "cli/program.h"
#include "cli/tensor_commands.h"

namespace {

bool needs_tensors(int argc, char** argv) {
  const std::string_view first = argc > 1 ? argv[1] : "", second = argc > 2 ? argv[2] : "";
  return first == "--version" || (first == "launch" && second == braid::kLaunchLocal.name) ||
         (first == "plan" && second == braid::kPlanCalibrate.name) ||
         std::any_of(braid::kTensorCommands.begin(), braid::kTensorCommands.end(),
                     [&](const braid::CommandName& command) { return first == command.name; });
}

int become_tensor_program(char** argv) {
  const std::string program =
      (std::filesystem::path(braid::own_executable()).parent_path() / braid::kTensorProgram).string();
  execv(program.c_str(), argv);
  fmt::print(stderr, "braid: cannot start {}: {}\n  fix:   keep it beside braid; `./dev build` builds both\n", program,
             std::strerror(errno));
  return 1;
}

void add_commands(CLI::App& app, const std::vector<std::string>& command_line, int& exit_code) {
  app.add_flag("--version")->description("Print the versions of braid and its libraries");
  // --help lists them in this order; the other program's commands are added only for that list.
  const auto add_name = [&](const braid::CommandName& command) { app.add_subcommand(command.name, command.help); };
  add_name(braid::kTrain);
  add_name(braid::kEval);
  braid::add_plan_command(app);
  braid::add_model_command(app);
  add_name(braid::kRun);
  braid::add_launch_command(app, command_line, exit_code);
  add_name(braid::kCkpt);
  braid::add_data_command(app);
  braid::add_report_command(app);
  braid::add_doctor_command(app, exit_code);
  braid::add_trace_command(app);
  add_name(braid::kForward);
}

}  // namespace

int main(int argc, char** argv) {
  braid::open_missing_streams();
  return needs_tensors(argc, argv) ? become_tensor_program(argv) : braid::run_program(argc, argv, add_commands);
}
