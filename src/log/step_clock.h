// Measures where a rank's time goes, for both the log and the trace.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "log/phase_timers.h"
#include "log/trace.h"

namespace braid {

// Shows when a GPU ran the scopes of a StepClock, on a track of the trace beside the host's. The times are those of the
// marks that the phase timers record in the GPU's queue, so these spans need no additional events.
class DeviceTrack {
 public:
  DeviceTrack(Trace& trace, const std::string& name) : trace_(trace), track_(trace.add_track(name)) {}

  // A span from one mark to another; returns its number.
  std::int64_t open(std::string_view name, std::initializer_list<Trace::Arg> args, std::int64_t begin_mark);
  void close(std::int64_t number, std::int64_t end_mark);

  // Takes the times between the next marks, the last of which the device has just passed. Writes the spans whose end is
  // known.
  void pass_marks(const std::vector<double>& ms_between, Trace::TimePoint now);

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
  StepClock& operator=(const StepClock&) = delete;

  // A span on the device, which ends at the mark that the timer makes at the end of the scope.
  class DeviceScope {
   public:
    DeviceScope(const DeviceScope&) = delete;
    DeviceScope& operator=(const DeviceScope&) = delete;
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
