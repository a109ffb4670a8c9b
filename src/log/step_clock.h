// Measures the phases of an iteration. A rank is always in exactly one phase: the time of an inner scope is not counted
// for the outer one (a bridge wait inside forward is not forward), so the phases add up to the iteration.
#pragma once

#include "base/error.h"
#include "log/trace.h"

namespace braid {

enum class Phase { Forward, Backward, BridgeWait, PipelineWait, DataWait, Reduce, Optimizer, Other };
inline constexpr std::size_t kPhases = 8;

inline const char* name_of(Phase phase) {
  static constexpr std::array<const char*, kPhases> names = {"forward",   "backward", "bridge wait", "pipeline wait",
                                                             "data wait", "reduce",   "optimizer",   "other"};
  return names[static_cast<std::size_t>(phase)];
}

struct PhaseReport {
  std::array<double, kPhases> phase_ms{};  // per iteration, by Phase

  double ms(Phase phase) const { return phase_ms[static_cast<std::size_t>(phase)]; }
  double iteration_ms() const { return std::accumulate(phase_ms.begin(), phase_ms.end(), 0.0); }
  // Of the iteration, 0 to 1.
  double share(Phase phase) const { return iteration_ms() > 0 ? ms(phase) / iteration_ms() : 0; }
};

// Records time marks. Times may become known later, because a GPU reaches a mark after the host.
class PhaseClock {
 public:
  virtual ~PhaseClock() = default;
  virtual void mark() = 0;
  // The known milliseconds between consecutive marks; with `wait`, all. The last mark starts the next interval.
  virtual std::vector<double> take_spans(bool wait) = 0;
  // The device that is timed, e.g. "GPU"; empty for the host.
  virtual std::string device() const { return ""; }
};

class HostClock : public PhaseClock {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Now = std::function<TimePoint()>;
  explicit HostClock(Now now = &std::chrono::steady_clock::now) : now_(std::move(now)) {}
  void mark() override { marks_.push_back(now_()); }
  std::vector<double> take_spans(bool) override {
    std::vector<double> spans;
    for (std::size_t i = 1; i < marks_.size(); ++i)
      spans.push_back(std::chrono::duration<double, std::milli>(marks_[i] - marks_[i - 1]).count());
    marks_.erase(marks_.begin(), marks_.end() - 1);
    return spans;
  }

 private:
  Now now_;
  std::vector<TimePoint> marks_;
};

class PhaseTimers {
 public:
  class Scope {
   public:
    Scope(const Scope&) = delete;
    ~Scope() { timers_.enter(outer_); }

   private:
    friend class PhaseTimers;
    Scope(PhaseTimers& timers, Phase phase) : timers_(timers), outer_(timers.current_) { timers_.enter(phase); }
    PhaseTimers& timers_;
    Phase outer_;
  };

  explicit PhaseTimers(std::unique_ptr<PhaseClock> clock = std::make_unique<HostClock>()) : clock_(std::move(clock)) {
    clock_->mark();
  }

  // Time outside of every scope is Phase::Other.
  [[nodiscard]] Scope measure(Phase phase) { return {*this, phase}; }

  // Sums up the marks that the device has passed, so that memory does not grow with the length of an interval. Call it
  // once per iteration, just after the host has waited for the device. `wait`: waits for the last mark, too.
  void collect(bool wait = false) {
    const std::vector<double> spans = clock_->take_spans(wait);
    for (std::size_t i = 0; i < spans.size(); ++i) collected_ms_[static_cast<std::size_t>(ended_[i])] += spans[i];
    ended_.erase(ended_.begin(), ended_.begin() + std::ssize(spans));
    if (watcher_) watcher_(spans);
  }

  // Marks are numbered from 0; each scope makes one at its beginning and one at its end.
  std::int64_t marks() const { return marks_; }
  // `watcher` receives the milliseconds between newly collected marks, beginning at the last mark of its previous call.
  void watch_marks(std::function<void(const std::vector<double>& ms_between)> watcher) {
    watcher_ = std::move(watcher);
  }

  // The mean over the iterations since the last report; starts the next interval.
  PhaseReport report(int iterations) {
    BRAID_CHECK(iterations > 0, "a report is a mean over iterations, but there were {}", iterations);
    enter(current_);
    collect(true);
    PhaseReport report;
    for (std::size_t i = 0; i < kPhases; ++i) report.phase_ms[i] = std::exchange(collected_ms_[i], 0) / iterations;
    return report;
  }

 private:
  void enter(Phase phase) {
    clock_->mark();
    ++marks_;
    ended_.push_back(current_);
    current_ = phase;
  }

  std::unique_ptr<PhaseClock> clock_;
  std::function<void(const std::vector<double>&)> watcher_;
  std::int64_t marks_ = 1;
  Phase current_ = Phase::Other;
  std::vector<Phase> ended_;  // the phase before each mark, except the first, that is not yet collected
  std::array<double, kPhases> collected_ms_{};
};

// --- where a rank's time goes, for both the log and the trace

// Shows when a GPU ran the scopes of a StepClock, on a track of the trace beside the host's. The times are those of the
// marks that the phase timers record in the GPU's queue, so these spans need no additional events.
class DeviceTrack {
 public:
  DeviceTrack(Trace& trace, const std::string& name) : trace_(trace), track_(trace.add_track(name)) {}

  // A span from one mark to another; returns its number.
  std::int64_t open(std::string_view name, std::initializer_list<Trace::Arg> args, std::int64_t begin_mark) {
    spans_.emplace(next_, Span{std::string(name), args, begin_mark});
    return next_++;
  }
  void close(std::int64_t number, std::int64_t end_mark) { spans_.at(number).end_mark = end_mark; }

  // Takes the times between the next marks, the last just passed, and writes the spans that have ended.
  void pass_marks(const std::vector<double>& ms_between, Trace::TimePoint now) {
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
    std::erase_if(spans_, [&](const auto& numbered) {
      const auto& [name, args, begin_mark, end_mark] = numbered.second;
      const bool has_ended = end_mark != kOpen && end_mark <= passed_;
      if (has_ended) trace_.add_span(name, times_.at(begin_mark), times_.at(end_mark), args, track_);
      if (!has_ended) oldest = std::min(oldest, begin_mark);
      return has_ended;
    });
    times_.erase(times_.begin(), times_.lower_bound(oldest));
  }

 private:
  static constexpr std::int64_t kOpen = -1;
  struct Span {
    std::string name;
    std::vector<Trace::Arg> args;
    std::int64_t begin_mark, end_mark = kOpen;
  };

  Trace& trace_;
  const int track_;
  std::map<std::int64_t, Span> spans_;  // not yet written, by number, outer ones first
  std::map<std::int64_t, Trace::TimePoint>
      times_;  // times of the last mark passed and of the marks at which spans_ begin
  std::int64_t next_ = 0, passed_ = 0;
};

class StepClock {
 public:
  explicit StepClock(Trace trace = Trace(), std::unique_ptr<PhaseClock> clock = std::make_unique<HostClock>())
      : device_(clock->device()), timers_(std::move(clock)), trace_(std::move(trace)) {
    if (!trace_.enabled() || device_.empty()) return;
    track_.emplace(trace_, device_);
    timers_.watch_marks([this](const std::vector<double>& ms_between) {
      track_->pass_marks(ms_between, std::chrono::steady_clock::now());
    });
  }
  StepClock(const StepClock&) = delete;

  // A span on the device, which ends at the mark that the timer makes at the end of the scope.
  class DeviceScope {
   public:
    DeviceScope(const DeviceScope&) = delete;
    ~DeviceScope() {
      if (clock_.track_) clock_.track_->close(number_, clock_.timers_.marks() - 1);
    }

   private:
    friend class StepClock;
    DeviceScope(StepClock& clock, std::string_view name, std::initializer_list<Trace::Arg> args) : clock_(clock) {
      if (clock_.track_) number_ = clock_.track_->open(name, args, clock_.timers_.marks());
    }
    StepClock& clock_;
    std::int64_t number_ = 0;
  };

  struct Scope {
    DeviceScope device;
    PhaseTimers::Scope timer;
    Trace::Span span;
  };
  [[nodiscard]] Scope measure(Phase phase, std::string_view name, std::initializer_list<Trace::Arg> args = {}) {
    return {DeviceScope(*this, name, args), timers_.measure(phase), trace_.span(name, args)};
  }

  // The host has just waited for the device.
  void synchronised() { timers_.collect(/*wait=*/track_.has_value()); }

  PhaseTimers& timers() { return timers_; }
  Trace& trace() { return trace_; }

 private:
  const std::string device_;
  PhaseTimers timers_;
  Trace trace_;
  std::optional<DeviceTrack> track_;  // set for a device, if there is a trace
};

}  // namespace braid
