#include "predict/scale_nodes.h"

#include <algorithm>

#include "base/error.h"
#include "plan/topology_config.h"

namespace braid {
namespace {

ConfigError no_such_layout(int nodes, std::int64_t ranks, const std::string& why) {
  return ConfigError({fmt::format("{} nodes have {} ranks: {}", nodes, ranks, why), "--nodes",
                      "use another number of nodes, or change the topology, e.g. with --topology.modules.language.tp"});
}

std::string changed(const std::string& name, int before, int after) {
  return fmt::format("{} {} -> {}", name, before, after);
}

}  // namespace

ScaledRecipe scale_to_nodes(const Recipe& recipe, int nodes, int ranks_per_node) {
  ScaledRecipe scaled = {recipe};
  TopologyConfig& topology = scaled.recipe.topology;
  const std::int64_t ranks = std::int64_t{nodes} * ranks_per_node;
  std::int64_t others = 0;
  for (const ModuleConfig& module : topology.modules)
    if (module.kind == "encoder" && !topology.colocated) others += grid_size(module);
  std::string& how = scaled.how;
  for (ModuleConfig& module : topology.modules) {
    if (module.kind == "encoder" && !topology.colocated) continue;
    const std::int64_t of_replica = std::int64_t{module.tp} * module.cp * module.pp;
    if (ranks <= others || (ranks - others) % of_replica != 0)
      throw no_such_layout(nodes, ranks,
                           fmt::format("{} are left for {}, whose replicas have {}",
                                       std::max<std::int64_t>(0, ranks - others), module.name, of_replica));
    const int dp = static_cast<int>((ranks - others) / of_replica);
    how += (how.empty() ? "" : ", ") + changed(module.name + ".dp", module.dp, dp);
    if (module.kind != "encoder") {
      const std::int64_t batch = std::int64_t{recipe.train.global_batch} * dp;
      if (batch % module.dp != 0)
        throw no_such_layout(nodes, ranks, fmt::format("a global batch for {} replicas is no whole number", dp));
      scaled.recipe.train.global_batch = static_cast<int>(batch / module.dp);
    }
    module.dp = dp;
    module.ranks = module.expt_dp = std::nullopt;
    if (!topology.colocated) module.rank_offset = std::nullopt;
  }
  topology.world_size = std::nullopt;
  how += ", " + changed("global_batch", recipe.train.global_batch, scaled.recipe.train.global_batch);
  return scaled;
}

}  // namespace braid
