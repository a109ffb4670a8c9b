// Requests to end a run before its last iteration: by a signal, after some time, or at some iteration. Each iteration
// takes the maximum over all ranks, so all end after the same one. A run that ends this way saves first. It has
// succeeded, unless a person interrupted it.
#pragma once

#include <signal.h>
#include "base/config.h"

namespace braid {

struct StopConfig {
  std::optional<double> exit_duration_in_mins{};  // since the StopRequest was made
  std::optional<std::int64_t> exit_interval{};    // end after the first iteration that is a multiple of it
};

void describe(Fields& fields, StopConfig& config);
std::vector<Problem> validate(const StopConfig& config);  // keys as in a recipe's section "stop"

// In order of increasing information, since the log shows the maximum over ranks.
enum class StopReason { None, ExitInterval, ExitDuration, SigUsr1, SigHup, SigTerm, SigInt };

// "SIGTERM", "exit_duration_in_mins=5 reached"; for None: "all iterations done"
std::string text_of(StopReason reason, const StopConfig& config);

// The signal by which a person interrupted the run, Ctrl-C or a closed terminal: the exit code is then 128 + its
// number, so that scripts stop, too. 0 for other reasons: schedulers send SIGTERM and SIGUSR1, and expect success.
inline int interrupting_signal(StopReason reason) {
  return reason == StopReason::SigInt ? SIGINT : reason == StopReason::SigHup ? SIGHUP : 0;
}

// The notice that a rank prints to stderr at once, from the signal handler, if a signal was sent only to it.
struct StopNotice {
  int rank = 0;
  std::string next{};           // what the run does next; empty: print nothing
  bool speaks_for_all = false;  // print also if the signal went to all ranks and no launcher reports it
  // The parent is the launcher, so only its signals go to all ranks. Otherwise, any ancestor may be the launcher.
  bool parent_is_launcher = false;
};

// While it exists, SIGINT, SIGTERM, SIGHUP and SIGUSR1 do not end the process; signals that were already ignored stay
// ignored (except SIGUSR1). Only one may exist at a time, since signals belong to the process; any thread may query it.
// A rank creates it first and keeps it until it exits; ranks of Braid's launcher start with these signals blocked. The
// launcher's own process must not create one.
class StopRequest {
 public:
  using Clock = std::chrono::steady_clock;

  explicit StopRequest(Clock::time_point start = Clock::now(), const StopNotice& notice = {});
  ~StopRequest();  // restores the old handlers and the signal mask
  StopRequest(const StopRequest&) = delete;

  bool asked() const;  // by a signal
  // This rank's reason to stop after an iteration; ordered, so that a maximum over ranks can be taken.
  StopReason wanted(const StopConfig& config, std::int64_t iteration, Clock::time_point now = Clock::now()) const;

 private:
  Clock::time_point start_;
  std::array<struct sigaction, 4> old_actions_;
  sigset_t old_mask_;
};

}  // namespace braid
