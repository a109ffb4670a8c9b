#include "comm/comm_meter.h"
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include "comm/backend_factory.h"
#include "comm/progress.h"

namespace braid {
namespace {

using TimePoint = CommSpan::TimePoint;

// The host computes, so the time that it spends in the start and in the wait is exposed.
class HostTiming : public CommMeter::Timing {
 public:
  explicit HostTiming(const CommMeter::Now& now) : now_(now), started_(now()) {}

  void launched(const CommMeter::Works& works) override {
    launched_ = now_();
    if (works.size() != 1) return;
    auto completed = std::make_shared<std::atomic<TimePoint::rep>>(0);
    if (tell_completion(*works[0], [completed, now = now_] { *completed = now().time_since_epoch().count(); }))
      completed_ = std::move(completed);
  }
  void wait_begins() override { wait_began_ = now_(); }
  void wait_ends() override { wait_ended_ = now_(); }

  std::optional<Times> times(const DeviceTimes*) const override {
    CoveredTime exposed;
    exposed.add(started_, launched_);
    exposed.add(wait_began_, wait_ended_);
    // The end is that of the wait if the backend does not report the completion.
    const TimePoint::rep ns = completed_ ? completed_->load() : 0;
    const TimePoint completion = ns == 0 ? wait_ended_ : TimePoint(TimePoint::duration(ns));
    return Times{std::move(exposed), started_, started_, std::clamp(completion, launched_, wait_ended_)};
  }

 private:
  const CommMeter::Now now_;
  const TimePoint started_;
  TimePoint launched_{}, wait_began_{}, wait_ended_{};
  std::shared_ptr<std::atomic<TimePoint::rep>> completed_;  // since the clock's epoch; 0: not known
};

// The GPU computes on its current stream: the time that passes there between the events around the wait is exposed.
class DeviceTiming : public CommMeter::Timing {
 public:
  explicit DeviceTiming(std::shared_ptr<EventPool> events) : events_(std::move(events)), ready_(events_->record()) {}
  ~DeviceTiming() override {
    events_->put_back(std::move(ready_));
    if (wait_began_) events_->put_back(*std::move(wait_began_));
    if (wait_ended_) events_->put_back(*std::move(wait_ended_));
  }

  void launched(const CommMeter::Works& works) override { span_after_ = device_span_of(*works.back()); }
  void wait_begins() override { wait_began_ = events_->record(); }
  void wait_ends() override { wait_ended_ = events_->record(); }

  // The stream has waited for the work, so that is complete when the end of the wait is.
  std::optional<Times> times(const DeviceTimes* device_times) const override {
    if (!wait_ended_->query() || !device_times->known()) return std::nullopt;
    const DeviceSpan span = span_after_(ready_);
    const TimePoint ready = device_times->time_of(ready_);
    const auto after = [&](double ms) {
      return ready + std::chrono::duration_cast<TimePoint::duration>(std::chrono::duration<double, std::milli>(ms));
    };
    CoveredTime exposed;
    exposed.add(device_times->time_of(*wait_began_), device_times->time_of(*wait_ended_));
    return Times{std::move(exposed), ready, after(span.begin_ms), after(span.end_ms)};
  }

 private:
  std::shared_ptr<EventPool> events_;
  c10::Event ready_;  // the inputs are there
  std::optional<c10::Event> wait_began_, wait_ended_;
  std::function<DeviceSpan(const c10::Event& since)> span_after_;
};

}  // namespace

CommMeter::CommMeter(const c10::Device& device, Now now)
    : now_(std::move(now)), events_(device.is_cpu() ? nullptr : std::make_shared<EventPool>(device)) {}

CommMeter::~CommMeter() = default;

CommMeter::Measured CommMeter::start(const std::string& group, const char* op, bool on_device) {
  const CommKey key = {group, op, purpose_.load()};
  if (!on_device) return {.key = key, .timing = std::make_unique<HostTiming>(now_)};
  {
    std::lock_guard lock(mutex_);
    if (!device_times_) device_times_ = std::make_unique<DeviceTimes>(*events_);
  }
  return {.key = key, .timing = std::make_unique<DeviceTiming>(events_)};
}

void CommMeter::finish(Measured measured, const std::vector<Wait>& waits) {
  std::lock_guard lock(mutex_);
  for (const Wait& wait : waits) {
    const Meeting& meeting = wait.meeting;
    measured.bytes += meeting.bytes;
    if (keeps_spans_)
      measured.parts.push_back({meeting.name, wait.arrival, meeting.bytes, meeting.members, meeting.sender});
  }
  awaited_.push_back(std::move(measured));
  count_completed();
}

// Each call of finish() looks at the oldest operation, so there are never more here than the GPU has queued.
void CommMeter::count_completed() {
  while (!awaited_.empty()) {
    Measured& oldest = awaited_.front();
    const auto times = oldest.timing->times(device_times_.get());
    if (!times) return;
    CommUse& use = totals_[oldest.key];
    use.bytes += static_cast<double>(oldest.bytes);
    use.exposed.add(times->exposed);
    use.in_flight.add(times->ready, times->end);
    // A rank wakes up some time after the operation it waited for: to the rank, the operation ends then.
    use.in_flight.add(times->exposed);
    if (!oldest.parts.empty())
      spans_.push_back({std::move(oldest.key), std::move(oldest.parts), times->begin, times->end, times->exposed.ms()});
    awaited_.pop_front();
  }
}

void CommMeter::synchronised() {
  std::lock_guard lock(mutex_);
  count_completed();
  if (device_times_) device_times_->synchronised();
}

CommLedger CommMeter::take_totals() {
  std::lock_guard lock(mutex_);
  count_completed();
  return std::exchange(totals_, {});
}

void CommMeter::keep_spans() {
  std::lock_guard lock(mutex_);
  count_completed();
  keeps_spans_ = true;
}

std::vector<CommSpan> CommMeter::take_spans() {
  std::lock_guard lock(mutex_);
  count_completed();
  return std::exchange(spans_, {});
}

c10::Event EventPool::record() {
  c10::Event event = [&] {
    std::lock_guard lock(mutex_);
    if (free_.empty()) return c10::Event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    c10::Event used = std::move(free_.back());
    free_.pop_back();
    return used;
  }();
  event.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  return event;
}

void EventPool::put_back(c10::Event event) {
  std::lock_guard lock(mutex_);
  free_.push_back(std::move(event));
}

DeviceTimes::DeviceTimes(EventPool& events) : events_(events), event_(events.record()) {
  event_.synchronize();
  time_ = std::chrono::steady_clock::now();
}

void DeviceTimes::synchronised() {
  time_ = std::chrono::steady_clock::now();
  events_.put_back(std::exchange(event_, events_.record()));
}

DeviceTimes::TimePoint DeviceTimes::time_of(const c10::Event& event) const {
  const std::chrono::duration<double, std::milli> since(event_.elapsedTime(event));
  return time_ + std::chrono::duration_cast<std::chrono::steady_clock::duration>(since);
}

}  // namespace braid
