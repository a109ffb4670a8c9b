// What all ranks need to run one step: the edges between stages and the verified schedule.
#pragma once

#include <vector>

#include "plan/schedule.h"

namespace braid {

struct StepPlan {
  StepPlan(const Topology& topology, const ScheduleOptions& options);
  const ScheduleOptions options;
  const std::vector<Edge> edges;
  const Schedule schedule;
};

}  // namespace braid
