// The memory that a run needs on a device: `braid plan memory`, searches and pages show this number and compare it with
// a device's capacity. No libtorch here.
#pragma once

#include "predict/hardware.h"
#include "predict/memory.h"

namespace braid {

// A device: a GPU, or a host whose CPU its ranks share.
struct DeviceMemory {
  std::int64_t needed = 0;      // needed_of_device()
  std::int64_t with_slack = 0;  // held_on_device()
  std::int64_t capacity = 0;

  bool fits() const { return needed <= capacity; }
};
DeviceMemory device_memory(const MemoryPrediction& prediction, const Topology& topology,
                           const HardwareProfile& hardware);

MemoryQuestion memory_question(const HardwareProfile& hardware);

// Bytes of the fullest GPU or, on CPUs, of the host whose memory all ranks share. Slack is excluded, because an
// allocator that runs out of memory first releases what it caches.
std::int64_t needed_of_device(const MemoryPrediction& prediction, const Topology& topology,
                              const MemoryQuestion& question);

// The same with slack, as a tool that monitors the device reports it.
std::int64_t held_on_device(const MemoryPrediction& prediction, const Topology& topology,
                            const MemoryQuestion& question);

}  // namespace braid
