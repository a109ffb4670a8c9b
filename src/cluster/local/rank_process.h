// The child processes of the launcher, each in its own process group, with its output on two pipes; and the signals
// that the launcher handles.
#pragma once

#include <signal.h>

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

// Reports processes in the order in which they ended; waitpid() reports them in the order of their start.
class EndOrder {
 public:
  EndOrder();
  void add(pid_t child);
  std::vector<pid_t> take_ended();                                       // of those added, each once
  bool watches(pid_t child) const { return running_.count(child) > 0; }  // false without pidfd_open()

 private:
  Fd epoll_;
  std::map<pid_t, Fd> running_;
};

// The variables of `env` are added to this process's. The child dies with its parent thread. Signals in `held` are
// blocked until the program unblocks them. With `ends`, the process is registered there before it runs. ConfigError if
// the program cannot be run.
RankProcess spawn_rank(const std::vector<std::string>& command, const std::map<std::string, std::string>& env,
                       const std::vector<int>& held = {}, EndOrder* ends = nullptr);

// "exited with code 3", "killed by SIGKILL (Killed)"
std::string describe_status(int status);
int exit_code_of(int status);

// Kills all remaining descendants of this process, even detached ones, except those in `spared`. Requires that
// become_subreaper() was called before they were started.
void become_subreaper();
std::vector<pid_t> children_of_this_process();
void kill_descendants(const std::vector<pid_t>& spared);

class SignalQueue {
 public:
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  int fd() const { return fd_.get(); }
  int next() const;  // 0: none

  // Does what SIGTSTP (Ctrl-Z) does by default. Returns when the process is continued, or immediately if there is no
  // shell to continue it.
  void stop_this_process() const;

 private:
  sigset_t before_;
  Fd fd_;
};

}  // namespace braid
