// How many GPUs there are to see, for checks before a run; kept apart from dist/, whose users need no device.
#pragma once

#include "base/error.h"

namespace braid {

int visible_gpus();  // to this process; nothing is set up on them

Problem no_gpu(const std::string& where);  // where one was asked for

}  // namespace braid
