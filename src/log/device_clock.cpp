#include "log/device_clock.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>

#include <algorithm>
#include <deque>

namespace braid {
namespace {

class DeviceClock : public PhaseClock {
 public:
  explicit DeviceClock(const c10::Device& device) : device_(device) {}

  void mark() override {
    if (marks_ == events_.size()) events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    events_[marks_++].record(at::accelerator::getCurrentStream(device_.index()));
  }

  std::vector<double> take_spans(bool wait) override {
    if (wait) events_[marks_ - 1].synchronize();
    std::size_t last = marks_ - 1;  // the last mark that the device has passed
    while (last > 0 && !events_[last].query()) --last;
    std::vector<double> spans;
    for (std::size_t i = 1; i <= last; ++i) spans.push_back(events_[i - 1].elapsedTime(events_[i]));
    std::rotate(events_.begin(), events_.begin() + static_cast<std::ptrdiff_t>(last), events_.end());
    marks_ -= last;
    return spans;
  }

  std::string device() const override { return "GPU"; }

 private:
  const c10::Device device_;
  std::deque<c10::Event> events_;  // reused after each take_spans()
  std::size_t marks_ = 0;
};

}  // namespace

std::unique_ptr<PhaseClock> make_phase_clock(const c10::Device& device) {
  if (device.is_cpu()) return std::make_unique<HostClock>();
  return std::make_unique<DeviceClock>(device);
}

MemoryUse memory_of_rank(const c10::Device& device) {
  MemoryUse memory = host_memory();
  if (device.is_cpu()) return memory;
  constexpr auto kAllPools = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = at::accelerator::getDeviceStats(device.index());
  const auto megabytes = [](std::int64_t bytes) { return static_cast<double>(bytes) / 1024 / 1024; };
  memory.allocated_mb = megabytes(stats.allocated_bytes[kAllPools].current);
  memory.max_allocated_mb = megabytes(stats.allocated_bytes[kAllPools].peak);
  memory.reserved_mb = megabytes(stats.reserved_bytes[kAllPools].current);
  memory.max_reserved_mb = megabytes(stats.reserved_bytes[kAllPools].peak);
  return memory;
}

}  // namespace braid
