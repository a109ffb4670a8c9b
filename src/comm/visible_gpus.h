// The GPUs that a process sees, for checks before any rank starts.
#pragma once

#include <cstdint>

#include "base/error.h"

namespace braid {

int visible_gpus();  // in this process; does not initialise them

// The memory of this host's smallest GPU, as NVIDIA's management library knows it; 0: unknown. Initialises no GPU
// either.
std::int64_t gpu_memory_bytes();

Problem no_gpu(const std::string& where);  // for a request of one

}  // namespace braid
