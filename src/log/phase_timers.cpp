#include "log/phase_timers.h"

#include <numeric>
#include <utility>

#include "base/error.h"

namespace braid {

const char* name_of(Phase phase) {
  static constexpr std::array<const char*, kPhases> names = {"forward",   "backward", "bridge wait", "pipeline wait",
                                                             "data wait", "reduce",   "optimizer",   "other"};
  return names[static_cast<std::size_t>(phase)];
}

double PhaseReport::iteration_ms() const { return std::accumulate(phase_ms.begin(), phase_ms.end(), 0.0); }

double PhaseReport::share(Phase phase) const {
  const double whole = iteration_ms();
  return whole > 0 ? ms(phase) / whole : 0;
}

std::vector<double> HostClock::take_spans(bool) {
  std::vector<double> spans;
  for (std::size_t i = 1; i < marks_.size(); ++i)
    spans.push_back(std::chrono::duration<double, std::milli>(marks_[i] - marks_[i - 1]).count());
  marks_.erase(marks_.begin(), marks_.end() - 1);
  return spans;
}

PhaseTimers::PhaseTimers(std::unique_ptr<PhaseClock> clock) : clock_(std::move(clock)) { clock_->mark(); }

PhaseTimers::Scope::Scope(PhaseTimers& timers, Phase phase) : timers_(timers), outer_(timers.current_) {
  timers_.enter(phase);
}

PhaseTimers::Scope::~Scope() { timers_.enter(outer_); }

void PhaseTimers::enter(Phase phase) {
  clock_->mark();
  ++marks_;
  ended_.push_back(current_);
  current_ = phase;
}

void PhaseTimers::collect(bool wait) {
  const std::vector<double> spans = clock_->take_spans(wait);
  for (std::size_t i = 0; i < spans.size(); ++i) collected_ms_[static_cast<std::size_t>(ended_[i])] += spans[i];
  ended_.erase(ended_.begin(), ended_.begin() + std::ssize(spans));
  if (watcher_) watcher_(spans);
}

PhaseReport PhaseTimers::report(int iterations) {
  BRAID_CHECK(iterations > 0, "a report is a mean over iterations, but there were {}", iterations);
  enter(current_);
  collect(true);
  PhaseReport report;
  for (std::size_t i = 0; i < kPhases; ++i) report.phase_ms[i] = std::exchange(collected_ms_[i], 0) / iterations;
  return report;
}

}  // namespace braid
