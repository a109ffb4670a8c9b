// braid: the commands without tensors. Those that use tensors, and the ranks of train and eval, are in braid-tensors.
#include <unistd.h>
#include "base/process.h"
#include "cli/train_cmd.h"

namespace braid {
namespace {

// Variables that make no sense are reported by the command.
bool is_rank() {
  try {
    return world_spec_from(process_env()).has_value();
  } catch (const ConfigError&) {
    return false;
  }
}

bool needs_tensors(int argc, char** argv) {
  const std::string_view first = argc > 1 ? argv[1] : "", second = argc > 2 ? argv[2] : "";
  if (first == "launch") return second == kLaunchLocal.name;
  if (first == "plan") return second == kPlanCalibrate.name;
  if (first == "train" || first == "eval") return is_rank();
  constexpr const char* kAlways[] = {"--version", kRun.name, kCkpt.name, kForward.name};
  return std::ranges::find(kAlways, first) != std::end(kAlways);
}

int become_tensor_program(char** argv) {
  const std::string program = (std::filesystem::path(own_executable()).parent_path() / kTensorProgram).string();
  execv(program.c_str(), argv);
  fmt::print(stderr, "braid: cannot start {}: {}\n  fix:   keep it beside braid; `./dev build` builds both\n", program,
             std::strerror(errno));
  return 1;
}

int run_braid(int argc, char** argv) {
  bool version = false;  // is the other program's
  return run_program(argc, argv,
                     {.name = "braid",
                      .help = "Braid trains multimodal language models, each module on its own grid of ranks.",
                      .options = {{"--version", &version, "Print the versions of braid and its libraries"}},
                      .subcommands = {train_command(), eval_command(), plan_command(), model_command(), named(kRun),
                                      launch_command(), named(kCkpt), data_command(), report_command(),
                                      compare_command(), doctor_command(), trace_command(), named(kForward)}});
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  braid::open_missing_streams();
  return braid::needs_tensors(argc, argv) ? braid::become_tensor_program(argv) : braid::run_braid(argc, argv);
}
