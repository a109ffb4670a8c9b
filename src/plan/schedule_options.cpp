#include "plan/schedule_options.h"

#include "base/strings.h"

namespace braid {

bool is_trained(const Topology& topology, const ScheduleOptions& options, const Stage& stage) {
  const std::string& name = topology.modules()[static_cast<std::size_t>(stage.module)].name;
  return !options.forward_only && !contains(options.frozen, name) &&
         (is_last(topology, stage) || !contains(options.frozen_before_last_stage, name));
}

bool has_update(const ScheduleOptions& options) { return options.updates && !options.forward_only; }

bool reads_batch(const Topology& topology, const Stage& stage) {
  return stage.index == 0 || !topology.modules()[static_cast<std::size_t>(stage.module)].is_encoder;
}

}  // namespace braid
