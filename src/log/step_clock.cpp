#include "log/step_clock.h"

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

std::int64_t DeviceTrack::open(std::string_view name, std::initializer_list<Trace::Arg> args, std::int64_t begin_mark) {
  spans_.emplace(next_, Span{std::string(name), args, begin_mark});
  return next_++;
}

void DeviceTrack::close(std::int64_t number, std::int64_t end_mark) { spans_.at(number).end_mark = end_mark; }

void DeviceTrack::pass_marks(const std::vector<double>& ms_between, Trace::TimePoint now) {
  if (ms_between.empty()) return;
  const std::int64_t before = passed_;
  passed_ += std::ssize(ms_between);
  times_[passed_] = now;
  for (std::int64_t mark = passed_ - 1; mark >= before; --mark) {
    const std::chrono::duration<double, std::milli> ms(ms_between[static_cast<std::size_t>(mark - before)]);
    const auto time = times_[mark + 1] - std::chrono::duration_cast<Trace::TimePoint::duration>(ms);
    times_.emplace(mark, time);  // keeps the previous call's time of its last mark
  }
  // The two clocks may disagree a little, but no span may end before it begins.
  for (auto mark = std::next(times_.begin()); mark != times_.end(); ++mark)
    mark->second = std::max(mark->second, std::prev(mark)->second);

  std::int64_t oldest = passed_;
  for (auto span = spans_.begin(); span != spans_.end();) {
    const auto& [name, args, begin_mark, end_mark] = span->second;
    if (end_mark == kOpen || end_mark > passed_) {
      oldest = std::min(oldest, begin_mark);
      ++span;
      continue;
    }
    trace_.add_span(name, times_.at(begin_mark), times_.at(end_mark), args, track_);
    span = spans_.erase(span);
  }
  times_.erase(times_.begin(), times_.lower_bound(oldest));
}

}  // namespace braid
