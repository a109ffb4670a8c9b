#include "comm/device_times.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace braid {

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
