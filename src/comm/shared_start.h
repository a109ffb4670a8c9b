// Ranks of one host that share the start of their program: loading libtorch costs 0.3 s of CPU time, so the launcher
// starts the program once, as rank 0, and the process forks into all ranks.
#pragma once

#include <sys/types.h>

namespace braid {

// The process inherits these descriptors from the launcher.
struct SharedStart {
  pid_t launcher = 0;
  int pids = -1;  // the process writes the ranks' ids here and ends; kHasThreads instead if it cannot fork safely
  int go = -1;    // each rank waits until it can read a byte here; by then the launcher has adopted it
  std::vector<std::pair<int, int>> outputs{};  // standard output and error of each rank but 0, which keeps those it has
};
inline constexpr pid_t kHasThreads = 0;

// The environment variable that passes `start` to the process. Its other variables must be those of rank 0.
std::map<std::string, std::string> to_env(const SharedStart& start);

// Forks a process that was started like this into its ranks and returns in each, with the rank's own variables and
// output; one that has other threads ends instead. Does nothing in any other process. Programs call it first in main.
void fork_into_ranks();

}  // namespace braid
