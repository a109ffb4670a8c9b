// braid-tensors: the commands of braid that need libtorch. Started by braid, not by users.
#include <torch/version.h>
#include "cli/train_cmd.h"
#include "comm/backend_factory.h"
#include "comm/shared_start.h"

std::string braid::version_text() {
  const std::string nccl = nccl_version();
  return fmt::format("braid {}\nlibtorch {}\nCUDA {}\nNCCL {}", BRAID_VERSION, TORCH_VERSION, BRAID_CUDA_VERSION,
                     nccl.empty() ? "none (CPU build)" : nccl);
}

int main(int argc, char** argv) {
  using namespace braid;
  fork_into_ranks();
  open_missing_streams();
  const Command program = {.name = "braid",
                           .help = "",
                           .subcommands = {train_command(rank_commands()),
                                           eval_command(rank_commands()),
                                           run_command(),
                                           ckpt_command(),
                                           forward_command(),
                                           {.name = "launch", .help = "", .subcommands = {launch_local_command()}},
                                           {.name = "plan", .help = "", .subcommands = {plan_calibrate_command()}}}};
  const int status = run_program(argc, argv, program, version_text);
  // libtorch destroys its tables of operators for 80 ms; nothing of ours lives as long.
  std::fflush(nullptr);
  std::_Exit(status);
}
