// Bytes of a thread's tensors.
#pragma once

#include <c10/core/Allocator.h>

namespace braid::testing {

// Counts the bytes of this thread's tensors that were allocated and not freed during its life.
class LiveBytes {
 public:
  std::int64_t count() const { return counter_->bytes; }
  std::int64_t most() const { return counter_->most; }  // at once

 private:
  struct Counter : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t, c10::Device) override {
      bytes += size;
      most = std::max(most, bytes);
    }
    bool memoryProfilingEnabled() const override { return true; }
    std::int64_t bytes = 0, most = 0;
  };
  const std::shared_ptr<Counter> counter_ = std::make_shared<Counter>();
  const c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, counter_};
};

}  // namespace braid::testing
