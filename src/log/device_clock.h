// Moments in the work of a device: phases on a GPU are as long as their work takes there, not as the host needs to queue
// it.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "log/phase_timers.h"

namespace braid {

// Of the device's current stream; on a CPU, the host's clock.
std::unique_ptr<PhaseClock> make_phase_clock(const c10::Device& device);

}  // namespace braid
