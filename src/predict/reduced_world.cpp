#include "predict/reduced_world.h"

#include <algorithm>
#include <numeric>

#include "plan/topology.h"

namespace braid {
namespace {

int shared_factor(const TopologyConfig& config, int (*size)(const ModuleConfig&)) {
  int factor = 0;
  for (const ModuleConfig& module : config.modules) factor = std::gcd(factor, size(module));
  return factor;
}

// The factors by which each module's ranks per replica shrink. Colocated modules must keep equal numbers of ranks.
std::vector<int> rank_factors(const TopologyConfig& config) {
  const auto size = [](const ModuleConfig& module) { return module.tp * module.cp; };
  std::vector<int> factors;
  for (const ModuleConfig& module : config.modules)
    factors.push_back(config.colocated ? shared_factor(config, size) : size(module));
  return factors;
}

// Replicas can be renumbered if modules that share ranks also have the same pipeline ranks.
int replica_factor(const TopologyConfig& config) {
  const bool same_stages = std::ranges::all_of(
      config.modules, [&](const ModuleConfig& module) { return module.pp == config.modules.front().pp; });
  if (config.colocated && !same_stages) return 1;
  return shared_factor(config, [](const ModuleConfig& module) { return module.dp; });
}

// The number of replicas that share experts; they must still wait for each other in the small world.
int replicas_with_shared_experts(const ModuleConfig& module) {
  const int ranks = module.tp * module.cp;
  return std::lcm(ranks, module.ep * module.expt_tp) / ranks;
}

ModuleConfig reduced(ModuleConfig module, int rank_factor, int replica_factor) {
  const bool has_experts = module.kind != "encoder";
  const int together = has_experts && replica_factor == 1 ? replicas_with_shared_experts(module) : 1;
  const int tp = module.tp * module.cp / rank_factor;
  module.rank_offset = module.ranks = module.expt_dp = std::nullopt;
  module.tp = tp;
  module.dp /= replica_factor;
  module.cp = module.expt_tp = 1;
  module.ep = has_experts ? tp * together : 1;
  return module;
}

Recipe reduced(const Recipe& recipe, int replica_factor) {
  const std::vector<int> factors = rank_factors(recipe.topology);
  Recipe small = recipe;
  small.topology.world_size = std::nullopt;
  for (std::size_t m = 0; m < factors.size(); ++m)
    small.topology.modules[m] = reduced(recipe.topology.modules[m], factors[m], replica_factor);
  small.train.global_batch /= replica_factor;
  return small;
}

// Any number of experts will do that the ranks can share.
Workload workload_of_small(const Recipe& small) {
  Workload workload = workload_of(small);
  workload.num_experts = 1;
  for (const ModuleConfig& module : small.topology.modules)
    workload.num_experts = std::lcm(workload.num_experts, module.ep);
  return workload;
}

}  // namespace

ReducedWorld reduce_world(const Recipe& recipe, bool equal_replicas) {
  std::vector<Module> modules = make_modules(recipe.topology, workload_of(recipe));
  const int factor = equal_replicas ? replica_factor(recipe.topology) : 1;
  Recipe small = reduced(recipe, factor);
  Topology topology(small.topology, workload_of_small(small));
  return {std::move(modules), std::move(small), std::move(topology), factor};
}

int ReducedWorld::full_rank(int module, int rank) const {
  const Grid& large = modules[module].dense;
  const Grid& small = topology.module(module).dense;
  const int tp = large.size_of("tp"), of_each = tp * large.size_of("cp") / small.size_of("tp");
  const int within = small.coord(rank, "tp") * of_each;
  return large.rank_at({within % tp, within / tp, small.coord(rank, "dp"), small.coord(rank, "pp")});
}

int ReducedWorld::full_size() const {
  int end = 0;
  for (const Module& module : modules) end = std::max(end, module.dense.end());
  return end;
}

}  // namespace braid
