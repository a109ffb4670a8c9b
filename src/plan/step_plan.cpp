#include "plan/step_plan.h"

namespace braid {

StepPlan::StepPlan(const Topology& topology, const ScheduleOptions& options)
    : options(options), edges(make_edges(topology)), schedule(verified_schedule(topology, options)) {}

}  // namespace braid
