// How long computing takes on a machine.
#pragma once

#include <vector>

#include "models/stage_work.h"
#include "predict/hardware.h"

namespace braid {

double seconds_of(const Work& work, const HardwareProfile& hardware);
// One call after the other. The host runs ahead of a GPU; where it is slower, its time counts.
double seconds_of(const std::vector<Work>& work, const HardwareProfile& hardware);

}  // namespace braid
