// The subcommands that need libtorch. Loading it takes a quarter of a second and 120 MB, so they are in a separate
// program, braid-tensors, which braid executes in its place when one of them is called.
#pragma once

#include <array>

namespace braid {

struct CommandName {
  const char* name;
  const char* help;
};

inline constexpr CommandName kTrain = {"train", "Train the model of a recipe"};
inline constexpr CommandName kEval = {"eval", "Evaluate a checkpoint on the data of a recipe"};
inline constexpr CommandName kRun = {"run", "Start N copies of a program on this host as the ranks of one world"};
inline constexpr CommandName kCkpt = {"ckpt", "Inspect, verify and convert checkpoints"};
inline constexpr CommandName kForward = {"forward", "Run a stored model once, in any layout, to compare its results"};
inline constexpr std::array kTensorCommands = {kTrain, kEval, kRun, kCkpt, kForward};

inline constexpr CommandName kLaunchLocal = {"local",
                                             "Start the ranks of a recipe or a command on this machine's GPUs"};

inline constexpr CommandName kPlanCalibrate = {"calibrate", "Measure the hardware profile of this machine"};

inline constexpr const char* kTensorProgram = "braid-tensors";  // in the same folder as braid

}  // namespace braid
