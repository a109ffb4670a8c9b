#include "plan/topology.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "plan/modules.h"
#include "plan/placement.h"

namespace braid {
namespace {

Module make_module(const ModuleConfig& config, const RankSpan& span) {
  const int offset = static_cast<int>(span.begin);
  const int expt_dp = static_cast<int>(span.size()) / (config.expt_tp * config.ep * config.pp);
  return {
      .name = config.name,
      .is_encoder = config.kind == "encoder",
      .dense = Grid(offset, {{"tp", config.tp}, {"cp", config.cp}, {"dp", config.dp}, {"pp", config.pp}}),
      .expert = Grid(offset, {{"expt_tp", config.expt_tp}, {"ep", config.ep}, {"expt_dp", expt_dp}, {"pp", config.pp}}),
      .vpp = config.vpp};
}

// The order is Megatron's. All ranks must agree on it, since creating a group is a collective operation.
void append_groups(const Module& module, std::vector<GroupSpec>& groups) {
  struct Kind {
    const Grid& view;
    std::vector<std::string> dims;
    bool on_host = false, connected = true;
  };
  const Kind kinds[] = {
      {.view = module.dense, .dims = {"tp"}},
      {.view = module.dense, .dims = {"cp"}},
      {.view = module.dense, .dims = {"pp"}, .connected = false},
      {.view = module.dense, .dims = {"dp"}, .connected = false},
      {.view = module.dense, .dims = {"dp", "cp"}},
      {.view = module.dense, .dims = {"tp", "cp"}},
      {.view = module.expert, .dims = {"ep"}},
      {.view = module.expert, .dims = {"expt_tp"}},
      {.view = module.expert, .dims = {"expt_dp"}},
      {.view = module.dense, .dims = {"tp", "pp"}, .connected = false},
      {.view = module.dense, .dims = {"tp", "cp", "dp"}},
      {.view = module.dense, .dims = {"tp", "cp", "pp", "dp"}, .connected = false},
      {.view = module.expert, .dims = {"expt_tp", "ep"}, .connected = false},
      {.view = module.expert, .dims = {"expt_tp", "ep", "pp"}, .connected = false},
      {.view = module.dense,
       .dims = {"tp", "cp", "pp"},
       .on_host = true},  // a replica, which shares a batch; the others are Megatron's
  };
  for (const auto& [view, dims, on_host, connected] : kinds) {
    const std::string name = module.name + "." + view.key(dims);
    for (std::vector<int>& ranks : view.groups(dims)) groups.push_back({name, std::move(ranks), on_host, connected});
  }
}

}  // namespace

std::vector<Module> make_modules(const TopologyConfig& config, const Workload& workload) {
  std::vector<Problem> problems = validate(config, workload);
  if (!problems.empty()) throw ConfigError(std::move(problems));
  const std::vector<RankSpan> spans = module_spans(config);
  std::vector<Module> modules;
  for (std::size_t i = 0; i < spans.size(); ++i) modules.push_back(make_module(config.modules[i], spans[i]));
  return modules;
}

Topology::Topology(const TopologyConfig& config, const Workload& workload)
    : colocated_(config.colocated), modules_(make_modules(config, workload)) {
  world_size_ = static_cast<int>(world_size_of(config));
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

std::vector<std::string> Topology::all_coordinates() const {
  std::vector<std::string> all;
  for (int rank = 0; rank < world_size_; ++rank) all.push_back(coordinates_of(rank));
  return all;
}

std::string Topology::coordinates_of(int global_rank) const {
  std::vector<std::string> all;
  for (const Module* module : modules_of(global_rank))
    all.push_back(fmt::format("{}[{}]", module->name, module->dense.coordinates_of(global_rank)));
  return fmt::format("{}", fmt::join(all, " + "));
}

}  // namespace braid
