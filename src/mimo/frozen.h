// Which parts of a model can be frozen, and what follows for the schedule. No libtorch here.
#pragma once

#include <string>
#include <vector>

#include "plan/schedule.h"

namespace braid {

// The parameter sets of a topology's modules: "language", "images.encoder", "images.projector".
std::vector<std::string> parameter_set_names(const Topology& topology);

// An encoder whose two sets are frozen has no backward; one whose projector trains has it on the last stage only.
ScheduleOptions schedule_options(const Topology& topology, const std::vector<std::string>& frozen, int microbatches,
                                 int prefetch);

}  // namespace braid
