#include "plan/topology.h"

#include <algorithm>

#include "base/error.h"
#include "plan/placement.h"

namespace braid {
namespace {

Module make_module(const ModuleConfig& config, const RankSpan& span) {
  const int offset = static_cast<int>(span.begin);
  const int expt_dp = static_cast<int>(span.size()) / (config.expt_tp * config.ep * config.pp);
  return {.name = config.name,
          .is_encoder = config.kind == "encoder",
          .dense = Grid(offset, {{"tp", config.tp}, {"cp", config.cp}, {"dp", config.dp}, {"pp", config.pp}}),
          .expert =
              Grid(offset, {{"expt_tp", config.expt_tp}, {"ep", config.ep}, {"expt_dp", expt_dp}, {"pp", config.pp}}),
          .vpp = config.vpp};
}

// The order is Megatron's. All ranks must agree on it, since creating a group is a collective operation.
void append_groups(const Module& module, std::vector<GroupSpec>& groups) {
  struct Kind {
    const Grid& view;
    std::vector<std::string> dims;
  };
  const Kind kinds[] = {
      {module.dense, {"tp"}},
      {module.dense, {"cp"}},
      {module.dense, {"pp"}},
      {module.dense, {"dp"}},
      {module.dense, {"dp", "cp"}},
      {module.dense, {"tp", "cp"}},
      {module.expert, {"ep"}},
      {module.expert, {"expt_tp"}},
      {module.expert, {"expt_dp"}},
      {module.dense, {"tp", "pp"}},
      {module.dense, {"tp", "cp", "dp"}},
      {module.dense, {"tp", "cp", "pp", "dp"}},
      {module.expert, {"expt_tp", "ep"}},
      {module.expert, {"expt_tp", "ep", "pp"}},
      {module.dense, {"tp", "cp", "pp"}},  // a replica; the others are Megatron's
  };
  for (const auto& [view, dims] : kinds) {
    const std::string name = module.name + "." + view.key(dims);
    for (std::vector<int>& ranks : view.groups(dims)) groups.push_back({name, std::move(ranks)});
  }
}

}  // namespace

LayoutSizes layout_sizes(const ModuleConfig& config) {
  return {.tp = config.tp, .cp = config.cp, .ep = config.ep, .expt_tp = config.expt_tp, .pp = config.pp, .vpp = config.vpp};
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

Topology::Topology(const TopologyConfig& config, const Workload& workload) : colocated_(config.colocated) {
  std::vector<Problem> problems = validate(config, workload);
  if (!problems.empty()) throw ConfigError(std::move(problems));
  const std::vector<RankSpan> spans = module_spans(config);
  for (std::size_t i = 0; i < spans.size(); ++i) {
    modules_.push_back(make_module(config.modules[i], spans[i]));
    world_size_ = std::max(world_size_, modules_.back().dense.end());
  }
  for (const Module& module : modules_) append_groups(module, groups_);
}

const Module& Topology::module(const std::string& name) const {
  auto found = std::find_if(modules_.begin(), modules_.end(), [&](const Module& m) { return m.name == name; });
  BRAID_CHECK(found != modules_.end(), "the topology has no module '{}'", name);
  return *found;
}

const Module& Topology::language() const {
  return *std::find_if(modules_.begin(), modules_.end(), [](const Module& m) { return !m.is_encoder; });
}

std::vector<const Module*> Topology::modules_of(int global_rank) const {
  std::vector<const Module*> present;
  for (const Module& module : modules_)
    if (module.dense.contains(global_rank)) present.push_back(&module);
  return present;
}

std::vector<std::string> Topology::places() const {
  std::vector<std::string> places;
  for (int rank = 0; rank < world_size_; ++rank) places.push_back(place_of(rank));
  return places;
}

std::string Topology::place_of(int global_rank) const {
  std::vector<std::string> places;
  for (const Module* module : modules_of(global_rank))
    places.push_back(fmt::format("{}[{}]", module->name, module->dense.place_of(global_rank)));
  return fmt::format("{}", fmt::join(places, " + "));
}

}  // namespace braid
