// The commands of braid and of braid-tensors, each declared by the file that runs it.
#pragma once

#include "cli/command.h"

namespace braid {

// braid: no libtorch.
Command data_command();
Command doctor_command();
Command launch_command();
Command model_command();
Command plan_command();
Command report_command();
Command trace_command();

// Their subcommands that are in other files.
Command data_bench_command();
Command data_inspect_command();
Command data_order_command();
Command data_pack_command();
Command launch_status_command();
Command launch_tail_command();
Command plan_search_command();
Command plan_simulate_command();

std::string called_as();  // "braid", or the path it was called by: for commands to copy

// braid-tensors. Loading libtorch takes a quarter of a second and 120 MB, so the commands that need it are in a
// separate program, which braid executes in its place when one of them is called.
Command ckpt_command();
Command eval_command();
Command forward_command();
Command launch_local_command();
Command plan_calibrate_command();
Command run_command();
Command train_command();

// Their names and help, which braid lists without having them.
struct CommandName {
  const char* name;
  const char* help;
};
inline constexpr CommandName kTrain = {"train", "Train the model of a recipe"};
inline constexpr CommandName kEval = {"eval", "Evaluate a checkpoint on the data of a recipe"};
inline constexpr CommandName kRun = {"run", "Start N copies of a program on this host as the ranks of one world"};
inline constexpr CommandName kCkpt = {"ckpt", "Inspect, verify and convert checkpoints"};
inline constexpr CommandName kForward = {"forward", "Run a stored model once, in any layout, to compare its results"};
inline constexpr CommandName kLaunchLocal = {"local",
                                             "Start the ranks of a recipe or a command on this machine's GPUs"};
inline constexpr CommandName kPlanCalibrate = {"calibrate", "Measure the hardware profile of this machine"};

inline Command named(const CommandName& command) { return {.name = command.name, .help = command.help}; }

inline constexpr const char* kTensorProgram = "braid-tensors";  // in the same folder as braid
std::string version_text();                                     // of that program

}  // namespace braid
