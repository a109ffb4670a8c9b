#include "plan/topology_config.h"

#include <algorithm>

namespace braid {

LayoutSizes layout_sizes(const ModuleConfig& config) {
  return {
      .tp = config.tp, .cp = config.cp, .ep = config.ep, .expt_tp = config.expt_tp, .pp = config.pp, .vpp = config.vpp};
}

void describe(Fields& fields, ModuleConfig& config) {
  fields.choice("kind", config.kind, {"encoder", "language"}, "role of the module");
  fields.field("rank_offset", config.rank_offset,
               "first global rank; default: after the previous module, 0 if colocated");
  fields.field("ranks", config.ranks, "number of ranks; must equal tp x cp x dp x pp");
  fields.field("tp", config.tp, "tensor parallel size");
  fields.field("cp", config.cp, "context parallel size");
  fields.field("dp", config.dp, "data parallel size");
  fields.field("pp", config.pp, "pipeline parallel size");
  fields.field("vpp", config.vpp, "pipeline stages per rank; more than 1 interleaves them");
  fields.field("ep", config.ep, "expert parallel size");
  fields.field("expt_tp", config.expt_tp, "tensor parallel size inside an expert");
  fields.field("expt_dp", config.expt_dp, "data parallel size of experts; default: fills the grid");
}

void describe(Fields& fields, TopologyConfig& config) {
  fields.field("colocated", config.colocated, "all modules on the same ranks");
  fields.field("world_size", config.world_size, "ranks of the run; default: as many as the modules need");
  fields.named("modules", config.modules);
}

std::int64_t grid_size(const ModuleConfig& config) {
  std::int64_t size = 1;
  for (int factor : {config.tp, config.cp, config.dp, config.pp})
    if (size <= kMaxWorldSize) size *= std::max(factor, 1);
  return size;
}

}  // namespace braid
