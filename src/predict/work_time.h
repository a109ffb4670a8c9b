// Predicts how long computing takes on a machine.
#pragma once

#include <vector>

#include "paper/work.h"
#include "predict/hardware.h"

namespace braid {

double seconds_of(const Work& work, const HardwareProfile& hardware);
// The calls run one after the other, in a later microbatch of a step unless in_microbatch() has selected the first. The
// host runs ahead of a GPU and counts only where it is slower; on a CPU, both times add up.
double seconds_of(const std::vector<Work>& work, const HardwareProfile& hardware);

}  // namespace braid
