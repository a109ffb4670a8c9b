// One child process of the launcher, in a process group of its own, with its output on two pipes.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/socket.h"

namespace braid {

struct RankProcess {
  pid_t pid = -1;
  Fd out, err;
  std::optional<int> status;  // of waitpid, once it has ended
  bool ended_by_launcher = false;
};

// Which of its processes have ended, in the order in which they did; waitpid() gives them in the order of their start.
class EndOrder {
 public:
  EndOrder();
  void add(pid_t child);
  std::vector<pid_t> take_ended();                                       // of those added, each once
  bool watches(pid_t child) const { return running_.count(child) > 0; }  // never where the system has no pidfd_open()

 private:
  Fd epoll_;
  std::map<pid_t, Fd> running_;
};

// The variables of `env` are added to this process's. The child dies with its parent thread. Signals of `held` wait
// until the program unblocks them. With `ends`, the process is watched before it runs. ConfigError when the program
// cannot be run.
RankProcess spawn_rank(const std::vector<std::string>& command, const std::map<std::string, std::string>& env,
                       const std::vector<int>& held = {}, EndOrder* ends = nullptr);

// "exited with code 3", "killed by SIGKILL (Killed)"
std::string describe_status(int status);
int exit_code_of(int status);

// Ends the descendants of this process that are still there, however they detached themselves; those in
// `spared` stay. Needs become_subreaper() to have been called before they were started.
void become_subreaper();
std::vector<pid_t> children_of_this_process();
void kill_descendants(const std::vector<pid_t>& spared);

}  // namespace braid
