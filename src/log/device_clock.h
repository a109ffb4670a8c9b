// Phase times and memory of a device. Times: on a GPU, the time that the work takes there, not the time that the host
// takes to queue it.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "log/memory_use.h"
#include "log/phase_timers.h"

namespace braid {

// Measures the device's current stream; on a CPU, the host's clock.
std::unique_ptr<PhaseClock> make_phase_clock(const c10::Device& device);

// This process's memory on the host and, if its device is a GPU, what libtorch has allocated there.
MemoryUse memory_of_rank(const c10::Device& device);

}  // namespace braid
