// Ranks of one host that share the start of their program: loading libtorch costs 0.3 s of CPU time, so the launcher
// starts the program once, and the process forks into its ranks.
#pragma once

#include <sys/types.h>

namespace braid {

// The process that the launcher starts inherits these descriptors.
struct SharedStart {
  pid_t launcher = 0;
  int pids = -1;                               // each rank writes a StartedRank here
  int go = -1;                                 // then it waits until it can read a byte here
  std::vector<std::pair<int, int>> outputs{};  // of each rank: its standard output and standard error
};
struct StartedRank {
  int rank = 0;
  pid_t pid = 0;
};

// The variable that describes it. The other variables must be those of rank 0.
std::map<std::string, std::string> to_env(const SharedStart& start);

// Call this first in main. In a process that the launcher has started like this, it returns in every rank, with the
// rank's own variables and output; in all others it does nothing. What the process does before it must not depend on
// its rank.
void fork_into_ranks();

}  // namespace braid
