// Times what this rank's groups communicate: how long each operation was in flight, and how long the rank's compute
// stood still for it. On a CPU these are host times, on a GPU times of its queues: events are recorded around each
// operation and read when the GPU has passed them, so that the host never waits for them.
#pragma once

#include <c10/core/Event.h>
#include <c10/util/intrusive_ptr.h>
#include "comm/comm_times.h"

namespace c10d {
class Work;
}

namespace braid {

class DeviceTimes;
class EventPool;
struct Wait;

class CommMeter {
 public:
  using Now = std::function<CommSpan::TimePoint()>;
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

  explicit CommMeter(const c10::Device& device, Now now = &std::chrono::steady_clock::now);
  ~CommMeter();
  CommMeter(const CommMeter&) = delete;

  // Operations that start while it exists have this purpose in their key.
  class Purpose {
   public:
    ~Purpose() { meter_.purpose_ = outer_; }
    Purpose(const Purpose&) = delete;

   private:
    friend class CommMeter;
    Purpose(CommMeter& meter, const char* name) : meter_(meter), outer_(meter.purpose_.exchange(name)) {}
    CommMeter& meter_;
    const char* outer_;
  };
  [[nodiscard]] Purpose purpose(const char* name) { return {*this, name}; }  // a string literal

  // One operation, which its group tells what happens, in this order.
  class Timing {
   public:
    struct Times {
      CoveredTime exposed{};
      CommSpan::TimePoint ready{}, begin{}, end{};  // the inputs are; it runs; it is complete
    };
    virtual ~Timing() = default;
    virtual void launched(const Works& works) = 0;
    virtual void wait_begins() = 0;
    virtual void wait_ends() = 0;
    // None until they are known. `device_times`: of a GPU.
    virtual std::optional<Times> times(const DeviceTimes* device_times) const = 0;
  };
  struct Measured {
    CommKey key;
    std::unique_ptr<Timing> timing;
    std::int64_t bytes = 0;
    std::vector<CommSpan::Part> parts{};  // while spans are kept
  };
  // Call it before the operation is launched. `on_device`: it runs in a queue of the GPU.
  Measured start(const std::string& group, const char* op, bool on_device);
  // Call it after wait_ends(). An operation that is never awaited is not counted.
  void finish(Measured measured, const std::vector<Wait>& waits);

  // The host has just waited for the device's current stream.
  void synchronised();

  // The operations that completed since the last call.
  CommLedger take_totals();
  // From now on, spans accumulate until they are taken.
  void keep_spans();
  std::vector<CommSpan> take_spans();

 private:
  void count_completed();

  const Now now_;
  std::atomic<const char*> purpose_ = "";  // atomic, since a backward may start operations on a thread of its own
  std::mutex mutex_;
  std::deque<Measured> awaited_;  // by the host; the GPU may not be there yet; oldest first
  CommLedger totals_;
  bool keeps_spans_ = false;
  std::vector<CommSpan> spans_;
  const std::shared_ptr<EventPool> events_;    // on a GPU
  std::unique_ptr<DeviceTimes> device_times_;  // on a GPU, from the first operation
};

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
