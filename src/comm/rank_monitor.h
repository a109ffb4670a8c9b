// A rank's client of the failure board: a thread that reports what the rank is doing, receives the root cause of a
// failure, and reports a crash when the rank itself no longer can.
#pragma once

#include <signal.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/socket.h"
#include "comm/board_messages.h"

namespace braid {

class RankMonitor {
 public:
  // `on_failure` is called once, from the monitor's thread, when any rank has failed. It should end the process, since
  // this rank's own thread may be deadlocked in a collective.
  RankMonitor(const Endpoint& board, Hello hello, Progress& progress, std::function<void(const RootCause&)> on_failure,
              std::chrono::milliseconds connect_timeout);
  ~RankMonitor();

  // Publishes this rank's own error and waits for the board's verdict, which may name another rank. Does not call
  // on_failure. `consequence`: a collective failed, so a peer's death may be the cause.
  RootCause report(const std::string& message, bool consequence);

  // The rank has finished; its connection may close.
  void goodbye();

  // Called from a signal handler: lets the monitor's thread publish the signal, then returns. Does not interfere when
  // another thread of this rank is already ending the process.
  void publish_fatal_signal(int signal) noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Routes SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT of this process through the monitor before they take effect. One
// monitor at a time; the guard restores the old handlers.
class CrashHandler {
 public:
  explicit CrashHandler(RankMonitor& monitor);
  ~CrashHandler();
  CrashHandler(const CrashHandler&) = delete;
  CrashHandler& operator=(const CrashHandler&) = delete;

 private:
  static constexpr std::array<int, 5> kFatalSignals = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
  std::array<struct sigaction, kFatalSignals.size()> old_actions_;
  stack_t old_stack_;
};

// While it lives, writing to a closed peer fails with an error instead of ending the process: Gloo writes without
// MSG_NOSIGNAL, and SIGPIPE would end a rank before it can report why. It installs a handler rather than SIG_IGN, which
// child processes would inherit. If SIGPIPE is already ignored, nothing changes.
class BrokenPipeGuard {
 public:
  BrokenPipeGuard();
  ~BrokenPipeGuard();
  BrokenPipeGuard(const BrokenPipeGuard&) = delete;
  BrokenPipeGuard& operator=(const BrokenPipeGuard&) = delete;

 private:
  struct sigaction old_action_;
};

}  // namespace braid
