// The GPUs of this host, for checks before any rank starts. Both queries load NVIDIA's libraries at run time, since
// machines without GPUs lack them, and create no CUDA context.
#pragma once

#include "base/error.h"

namespace braid {

int visible_gpus();               // to this process; 0 in a build without CUDA
std::int64_t gpu_memory_bytes();  // of the host's smallest GPU, visible or not; 0: unknown
Problem no_gpu(const std::string& where, const std::string& to_whom = "");  // for a request of one

}  // namespace braid
