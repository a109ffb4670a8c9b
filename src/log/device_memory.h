#pragma once

#include <c10/core/Device.h>

#include "log/memory_use.h"

namespace braid {

// This process's memory on the host and, if its device is a GPU, what libtorch has allocated there.
MemoryUse memory_of_rank(const c10::Device& device);

}  // namespace braid
