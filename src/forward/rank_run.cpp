#include "forward/rank_run.h"

#include <ATen/ops/zeros.h>

namespace braid {

SampleRange share_of_replica(std::size_t count, const Grid& grid, int global_rank) {
  const std::int64_t all = static_cast<std::int64_t>(count), replicas = grid.size_of("dp");
  const std::int64_t replica = grid.coord(global_rank, "dp");
  return {all * replica / replicas, all * (replica + 1) / replicas};
}

SampleRange rows_of_replica(const std::vector<std::int64_t>& offsets, const Grid& grid, int global_rank) {
  const auto [first, last] = share_of_replica(offsets.size() - 1, grid, global_rank);
  return {offsets[static_cast<std::size_t>(first)], offsets[static_cast<std::size_t>(last)]};
}

RankRun::RankRun(const ForwardOptions& options, const Topology& topology, World& world)
    : options(options),
      topology(topology),
      module(topology.language()),
      groups(world, topology),
      parallel(make_parallel(groups, module.name, options.sequence_parallel, options.overlap)),
      world(world) {}

Parameters RankRun::make_parameters(const std::vector<ParamSpec>& specs, const Fill& fill) const {
  std::vector<int> stages;
  for (const Stage& stage : stages_of(topology, world.rank())) stages.push_back(stage.index);
  Parameters parameters(specs, stages, shard_coordinates(module, world.rank()), options.dtype, world.device());
  fill(parameters);
  return parameters;
}

void RankRun::run(StageWork& work, bool backward) const {
  const StepPlan plan(topology, {.microbatches = 1, .forward_only = !backward, .updates = false});
  Executor executor(plan, topology, groups, tensor_options(), work);
  for (const Op& op : plan.schedule.ranks[static_cast<std::size_t>(world.rank())]) executor.run(op);
  executor.finish();
}

NamedTensors RankRun::collect_gradients(const std::vector<ParamSpec>& specs, const Parameters& parameters) const {
  const Group& everyone = groups.world();
  if (!options.take_gradient) return assemble_gradients(specs, parameters, module, everyone, tensor_options());
  assemble_gradients(specs, parameters, module, everyone, tensor_options(), options.take_gradient);
  return {};
}

at::Tensor RankRun::sum_of_losses(const at::Tensor& mine) const {
  const bool counts = mine.defined() && parallel.tp.rank() == 0;
  at::Tensor sum = counts ? mine.detach().to(at::kDouble) : at::zeros({}, tensor_options().dtype(at::kDouble));
  groups.world().all_reduce(sum);
  return world.rank() == 0 ? sum : at::Tensor();
}

}  // namespace braid
