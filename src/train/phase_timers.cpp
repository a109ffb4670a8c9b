#include "train/phase_timers.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace braid {

const char* name_of(Phase phase) {
  static constexpr std::array<const char*, kPhases> names = {"forward", "backward",  "bridge wait", "pipeline wait",
                                                             "reduce",  "optimizer", "other"};
  return names[static_cast<std::size_t>(phase)];
}

std::string to_line(const PhaseReport& report) {
  std::string line = "time (ms) |";
  for (const PhaseTime& time : report.phases)
    line += fmt::format(" {}: {:.1f} ({:.0f} %) |", name_of(time.phase), time.ms, 100 * time.share);
  return line;
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
  const auto ms_per_iteration = [&](TimePoint::duration time) {
    return std::chrono::duration<double, std::milli>(time).count() / iterations;
  };
  PhaseReport report;
  report.iteration_ms = ms_per_iteration(std::accumulate(spent_.begin(), spent_.end(), TimePoint::duration{}));
  for (std::size_t i = 0; i < kPhases; ++i) {
    if (spent_[i] == TimePoint::duration{}) continue;
    const double ms = ms_per_iteration(spent_[i]);
    report.phases.push_back({static_cast<Phase>(i), ms, ms / report.iteration_ms});
  }
  std::stable_sort(report.phases.begin(), report.phases.end(),
                   [](const PhaseTime& a, const PhaseTime& b) { return a.ms > b.ms; });
  spent_ = {};
  return report;
}

}  // namespace braid
