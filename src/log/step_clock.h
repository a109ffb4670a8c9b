// Measures where a rank's time goes, for both the log and the trace.
#pragma once

#include <initializer_list>
#include <string_view>
#include <utility>

#include "log/phase_timers.h"
#include "log/trace.h"

namespace braid {

class StepClock {
 public:
  explicit StepClock(Trace trace = Trace(), std::unique_ptr<PhaseClock> clock = std::make_unique<HostClock>())
      : timers_(std::move(clock)), trace_(std::move(trace)) {}

  struct Scope {
    PhaseTimers::Scope timer;
    Trace::Span span;
  };
  [[nodiscard]] Scope measure(Phase phase, std::string_view name, std::initializer_list<Trace::Arg> args = {}) {
    return {timers_.measure(phase), trace_.span(name, args)};
  }

  PhaseTimers& timers() { return timers_; }
  Trace& trace() { return trace_; }

 private:
  PhaseTimers timers_;
  Trace trace_;
};

}  // namespace braid
