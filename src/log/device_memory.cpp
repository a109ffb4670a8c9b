#include "log/device_memory.h"

#include <ATen/DeviceAccelerator.h>

namespace braid {

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
