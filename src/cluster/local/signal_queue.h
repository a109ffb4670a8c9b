// The signals that the launcher handles, read from a descriptor in its main loop. Restores the signal mask at the end.
#pragma once

#include <signal.h>

#include "base/socket.h"

namespace braid {

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
