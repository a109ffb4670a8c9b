// The signals that the launcher acts on, read from a descriptor in its main loop; the mask goes back at the end.
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

  // Does what SIGTSTP (Ctrl-Z) does by default: returns when the process goes on, and at once where no shell is
  // there to continue it.
  void stop_this_process() const;

 private:
  sigset_t before_;
  Fd fd_;
};

}  // namespace braid
