#include "plan/frozen.h"

#include "base/strings.h"

namespace braid {

std::vector<std::string> parameter_set_names(const Topology& topology) {
  std::vector<std::string> names;
  for (const Module& module : topology.modules()) {
    if (!module.is_encoder) names.push_back(module.name);
    if (module.is_encoder) names.insert(names.end(), {module.name + ".encoder", module.name + ".projector"});
  }
  return names;
}

ScheduleOptions schedule_options(const Topology& topology, const std::vector<std::string>& frozen, int microbatches,
                                 int prefetch) {
  ScheduleOptions options = {.microbatches = microbatches, .prefetch = prefetch};
  for (const Module& module : topology.modules()) {
    if (!module.is_encoder || !contains(frozen, module.name + ".encoder")) continue;
    (contains(frozen, module.name + ".projector") ? options.frozen : options.frozen_before_last_stage)
        .push_back(module.name);
  }
  return options;
}

}  // namespace braid
