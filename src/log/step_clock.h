// Measures where a rank's time goes, for both the log and the trace.
#pragma once

#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>

#include "log/device_track.h"
#include "log/phase_timers.h"
#include "log/trace.h"

namespace braid {

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
