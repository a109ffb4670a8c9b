// The GPUs that a process sees, for checks before any rank starts.
#pragma once

#include "base/error.h"

namespace braid {

int visible_gpus();  // in this process; does not initialise them

Problem no_gpu(const std::string& where);  // for a request of one

}  // namespace braid
