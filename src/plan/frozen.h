// Which parameter sets of a model can be frozen, and how that changes the schedule. No libtorch here.
#pragma once

#include <string>
#include <vector>

#include "plan/schedule.h"

namespace braid {

// The parameter sets of a topology's modules: "language", "images.encoder", "images.projector".
std::vector<std::string> parameter_set_names(const Topology& topology);

// An encoder with both sets frozen has no backward; if only its projector trains, only its last stage has one.
ScheduleOptions schedule_options(const Topology& topology, const std::vector<std::string>& frozen, int microbatches,
                                 int prefetch);

}  // namespace braid
