#pragma once

#include <c10/core/Device.h>

#include "log/memory_use.h"

namespace braid {

// This process's memory: on the host, and what libtorch has allocated on its device, if that is a GPU.
MemoryUse memory_of_rank(const c10::Device& device);

}  // namespace braid
