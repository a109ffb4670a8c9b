// The subcommands of braid plan.
#pragma once

#include "plan/schedule_options.h"
#include "run/recipe.h"

namespace CLI {
class App;
}

namespace braid {

ScheduleOptions schedule_options_of(const Recipe& recipe, const Topology& topology);

void add_plan_bytes_command(CLI::App& plan);
void add_plan_calibrate_command(CLI::App& plan);  // of braid-tensors

}  // namespace braid
