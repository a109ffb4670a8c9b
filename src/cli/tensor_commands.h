// The subcommands that need libtorch. It takes a quarter of a second and 120 MB to load, so they are in a program of
// their own, braid-tensors, and braid becomes that program when one of them is called.
#pragma once

#include <array>

namespace braid {

struct CommandName {
  const char* name;
  const char* help;
};

inline constexpr CommandName kTrain = {"train", "Train what a recipe describes"};
inline constexpr CommandName kRun = {"run", "Start N copies of a program on this host as the ranks of one world"};
inline constexpr CommandName kCkpt = {"ckpt", "Look at checkpoints, check them, convert them"};
inline constexpr CommandName kForward = {"forward", "Run a stored model once, in any layout, to compare its results"};
inline constexpr std::array kTensorCommands = {kTrain, kRun, kCkpt, kForward};

inline constexpr CommandName kLaunchLocal = {"local",
                                             "Start the ranks of a recipe or a command on this machine's GPUs"};

inline constexpr const char* kTensorProgram = "braid-tensors";  // stands beside braid

}  // namespace braid
