#include "plan/op.h"
#include "base/strings.h"

namespace braid {

std::string describe(const Transfer& t, const std::vector<Edge>& edges) {
  const Edge& edge = edges[t.edge];
  const bool forward = t.kind == Transfer::Activation;
  return fmt::format("the {} of microbatch {} from rank {} to rank {}", forward ? "activation" : "gradient",
                     t.microbatch, forward ? edge.from_rank : edge.to_rank, forward ? edge.to_rank : edge.from_rank);
}

std::string describe(const Op& op, const Topology& topology) {
  constexpr const char* kNames[Op::kKinds] = {"the start of the gather",
                                              "the end of the gather",
                                              "the start of the step",
                                              "the batch",
                                              "forward",
                                              "backward",
                                              "the exchange",
                                              "the start of the reduction",
                                              "the end of the reduction",
                                              "the update"};
  const std::string name = kNames[op.kind];
  if (!op.has_stage()) return name;
  const std::string& module = topology.module(op.stage.module).name;
  if (op.starts_collective() || op.ends_collective())
    return fmt::format("{} of {}, stage {}", name, module, op.stage.index);
  return fmt::format("{} of {}, microbatch {}", name, module, op.microbatch);
}

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

bool is_trained(const Topology& topology, const ScheduleOptions& options, const Stage& stage) {
  const std::string& name = topology.module(stage.module).name;
  return !options.forward_only && !contains(options.frozen, name) &&
         (is_last(topology, stage) || !contains(options.frozen_before_last_stage, name));
}

bool has_update(const ScheduleOptions& options) { return options.updates && !options.forward_only; }

bool reads_batch(const Topology& topology, const Stage& stage) {
  return stage.index == 0 || !topology.module(stage.module).is_encoder;
}

}  // namespace braid
