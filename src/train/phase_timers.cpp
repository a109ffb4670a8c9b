#include "train/phase_timers.h"

#include <numeric>
#include <utility>

#include "base/error.h"

namespace braid {

const char* name_of(Phase phase) {
  static constexpr std::array<const char*, kPhases> names = {"forward", "backward",  "bridge wait", "pipeline wait",
                                                             "reduce",  "optimizer", "other"};
  return names[static_cast<std::size_t>(phase)];
}

double PhaseReport::iteration_ms() const { return std::accumulate(phase_ms.begin(), phase_ms.end(), 0.0); }

double PhaseReport::share(Phase phase) const {
  const double whole = iteration_ms();
  return whole > 0 ? ms(phase) / whole : 0;
}

PhaseTimers::PhaseTimers(Now now) : now_(std::move(now)), since_(now_()) {}

PhaseTimers::Scope::Scope(PhaseTimers& timers, Phase phase) : timers_(timers), outer_(timers.current_) {
  timers_.enter(phase);
}

PhaseTimers::Scope::~Scope() { timers_.enter(outer_); }

void PhaseTimers::enter(Phase phase) {
  const TimePoint now = now_();
  spent_[static_cast<std::size_t>(current_)] += now - since_;
  since_ = now;
  current_ = phase;
}

PhaseReport PhaseTimers::report(int iterations) {
  BRAID_CHECK(iterations > 0, "a report is a mean over iterations, of which there were {}", iterations);
  enter(current_);
  PhaseReport report;
  for (std::size_t i = 0; i < kPhases; ++i)
    report.phase_ms[i] = std::chrono::duration<double, std::milli>(spent_[i]).count() / iterations;
  spent_ = {};
  return report;
}

}  // namespace braid
