// The GPUs that a process sees, for what is checked before any rank starts.
#pragma once

#include "base/error.h"

namespace braid {

int visible_gpus();  // to this process; nothing is set up on them

Problem no_gpu(const std::string& where);  // where one was asked for

}  // namespace braid
