// How a run is asked to end before its last iteration: by a signal, after some time, or at some iteration. A rank knows
// only its own view, so all ranks take the maximum over all of them in each iteration and everybody ends after the
// same one. A run that ends so has succeeded: it saves and exits with 0.
#pragma once

#include <signal.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"

namespace braid {

struct StopConfig {
  std::optional<double> exit_duration_in_mins{};  // since the StopRequest was made
  std::optional<std::int64_t> exit_interval{};    // end after the first iteration that is a multiple of it
};

void describe(Fields& fields, StopConfig& config);
std::vector<Problem> validate(const StopConfig& config);  // keys as in a recipe's section "stop"

// In the order in which they explain more: the maximum over ranks is what the log says.
enum class StopReason { None, ExitInterval, ExitDuration, SigUsr1, SigHup, SigTerm, SigInt };

// "SIGTERM", "exit_duration_in_mins=5 reached"; of None: "all iterations done"
std::string text_of(StopReason reason, const StopConfig& config);

// What a rank says on stderr at once, from the signal's handler, when a signal reaches it alone.
struct StopNotice {
  int rank = 0;
  std::string next{};           // what the run does now; empty: nothing is said
  bool speaks_for_all = false;  // says it too when the signal went to all ranks: there is no launcher that does
  // Only what this process's parent sends went to all. Under other launchers any process above it may be theirs.
  bool parent_is_launcher = false;
};

// From its construction on, SIGINT, SIGTERM, SIGHUP and SIGUSR1 no longer end the process; those that it ignores
// already stay ignored. There is one at a time, since signals belong to the process; it can be asked from every thread.
// A rank makes it before anything else and keeps it to its end: a signal then finds it wherever the run is. Braid's
// launcher holds signals back until it is there; the launcher's own process must not make one.
class StopRequest {
 public:
  using Clock = std::chrono::steady_clock;

  explicit StopRequest(Clock::time_point start = Clock::now(), const StopNotice& notice = {});
  ~StopRequest();  // puts the old handlers and the signal mask back
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  bool asked() const;  // by a signal
  // What this rank knows after an iteration; an integer that a maximum can be taken of.
  StopReason wanted(const StopConfig& config, std::int64_t iteration, Clock::time_point now = Clock::now()) const;

 private:
  Clock::time_point start_;
  std::array<struct sigaction, 4> old_actions_;
  sigset_t old_mask_;
};

}  // namespace braid
