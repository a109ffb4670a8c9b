// Events in the queues of a GPU, and the host's time when the GPU passed them.
#pragma once

#include <c10/core/Event.h>

#include <chrono>
#include <mutex>
#include <vector>

namespace braid {

// Events that measure time, to be used again: creating one takes longer than recording it.
class EventPool {
 public:
  explicit EventPool(const c10::Device& device) : device_(device) {}

  c10::Event record();  // on the current stream of the calling thread
  void put_back(c10::Event event);

 private:
  const c10::Device device_;
  std::mutex mutex_;
  std::vector<c10::Event> free_;
};

class DeviceTimes {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit DeviceTimes(EventPool& events);  // waits for the current stream

  // The host has just waited for the current stream, so an event that is recorded now happens now.
  void synchronised();

  // The GPU has passed the event that was recorded there; else times are not known yet.
  bool known() const { return event_.query(); }
  TimePoint time_of(const c10::Event& event) const;  // which the GPU has passed, too

 private:
  EventPool& events_;
  c10::Event event_;
  TimePoint time_;
};

}  // namespace braid
