// A rank's end of the failure board: a thread that says what the rank is doing, hears the root cause of a
// failure, and speaks for the rank when it can no longer speak itself (a crash).
#pragma once

#include <signal.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/socket.h"
#include "dist/board_messages.h"

namespace braid {

class RankMonitor {
 public:
  // `on_failure` is called once, from the monitor's thread, when any rank has failed; it is expected to end
  // the process, since this rank's own thread may be stuck in a collective for good.
  RankMonitor(const Endpoint& board, Hello hello, Progress& progress, std::function<void(const RootCause&)> on_failure,
              std::chrono::milliseconds connect_timeout);
  ~RankMonitor();

  // Publishes this rank's own error and waits for the board's word, which may name another rank. on_failure
  // is not called. `consequence`: the error came out of a collective, so a peer's death may be behind it.
  RootCause report(const std::string& message, bool consequence);

  // The rank is done; its connection may end.
  void goodbye();

  // From a signal handler: lets the monitor's thread publish the signal, then returns. When another thread of this rank
  // ends the process already, it does not get in between.
  void publish_fatal_signal(int signal) noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Routes SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT of this process through the monitor before they take
// their course. One monitor at a time; the guard puts the old handlers back.
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

// While it lives, a write to a peer that is gone is an error of that write, not the end of the process: Gloo writes
// without MSG_NOSIGNAL, and SIGPIPE would end a rank before it can say why. A handler rather than SIG_IGN, which the
// programs that a rank starts would inherit. Where SIGPIPE is ignored already, it stays so.
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
