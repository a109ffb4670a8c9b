// Phase times of a device: on a GPU, the time that the work takes there, not the time that the host takes to queue it.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "log/phase_timers.h"

namespace braid {

// Measures the device's current stream; on a CPU, the host's clock.
std::unique_ptr<PhaseClock> make_phase_clock(const c10::Device& device);

}  // namespace braid
