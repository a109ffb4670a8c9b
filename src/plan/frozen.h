// Which parts of a model can be frozen, and what follows for the schedule. No libtorch here.
#pragma once

#include <string>
#include <vector>

#include "plan/schedule.h"
#include "plan/timeline.h"

namespace braid {

// The parameter sets of a topology's modules: "language", "images.encoder", "images.projector".
std::vector<std::string> parameter_set_names(const Topology& topology);

// An encoder whose two sets are frozen has no backward; one whose projector trains has it on the last stage only.
ScheduleOptions schedule_options(const Topology& topology, const std::vector<std::string>& frozen, int microbatches,
                                 int prefetch);

// For drawings, in forwards of a stage: a whole backward takes two, one without gradients of weights one. A projector
// is small beside its encoder: where it alone trains, its backward is taken for a quarter.
std::vector<StageCosts> stage_costs(const Topology& topology, const std::vector<std::string>& frozen);

}  // namespace braid
