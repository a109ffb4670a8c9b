// How long computing takes on a machine.
#pragma once

#include <vector>

#include "paper/work.h"
#include "predict/hardware.h"

namespace braid {

double seconds_of(const Work& work, const HardwareProfile& hardware);
// One call after the other, in a microbatch that is not the first of its step unless in_microbatch() says otherwise.
// The host runs ahead of a GPU; where it is slower, its time counts. On a CPU, both times add up.
double seconds_of(const std::vector<Work>& work, const HardwareProfile& hardware);

}  // namespace braid
