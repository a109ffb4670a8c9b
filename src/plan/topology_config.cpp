#include "plan/topology_config.h"
#include "base/strings.h"

namespace braid {

LayoutSizes layout_sizes(const ModuleConfig& config) {
  return {
      .tp = config.tp, .cp = config.cp, .ep = config.ep, .expt_tp = config.expt_tp, .pp = config.pp, .vpp = config.vpp};
}

void describe(Fields& fields, ModuleConfig& config) {
  fields.choice("kind", config.kind, "role of the module");
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

std::vector<RankSpan> module_spans(const TopologyConfig& config) {
  std::vector<RankSpan> spans;
  std::int64_t previous_end = 0;
  for (const ModuleConfig& module : config.modules) {
    const std::int64_t begin = module.rank_offset ? *module.rank_offset : config.colocated ? 0 : previous_end;
    previous_end = begin + grid_size(module);
    spans.push_back({begin, previous_end});
  }
  return spans;
}

std::int64_t world_size_of(const TopologyConfig& config) {
  std::int64_t size = 0;
  for (const RankSpan& span : module_spans(config)) size = std::max(size, span.end);
  return size;
}

std::string key_of(const ModuleConfig& module, const std::string& field) {
  std::string key = "topology.modules";
  if (!module.name.empty()) key += "." + module.name;
  return field.empty() ? key : key + "." + field;
}

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> found;
  for (std::int64_t i = 1; i * i <= n; ++i) {
    if (n % i) continue;
    found.push_back(i);
    if (i * i < n) found.push_back(n / i);
  }
  std::ranges::sort(found);
  return found;
}

std::string dp_for(const ModuleConfig& module, std::int64_t ranks) {
  const std::int64_t replica = std::int64_t{module.tp} * module.cp * module.pp;
  if (ranks < 1 || ranks % replica) return "";
  return fmt::format("{}.dp={}", module.name, ranks / replica);
}

std::string use_one_of(std::vector<std::string> choices) {
  std::erase(choices, "");
  return fmt::format("use {}", joined(choices, " or "));
}

std::string nearest_of(const std::string& key, const std::vector<std::int64_t>& values, std::int64_t given) {
  std::int64_t below = 0, above = 0;
  for (std::int64_t value : values) {
    if (value < given) below = std::max(below, value);
    if (value > given) above = above ? std::min(above, value) : value;
  }
  auto text = [&](std::int64_t value) { return value ? fmt::format("{}={}", key, value) : ""; };
  return use_one_of({text(below), text(above)});
}

std::vector<std::int64_t> possible_ep(const ModuleConfig& module, int num_experts) {
  const std::int64_t stage = std::int64_t{module.tp} * module.cp * module.dp;
  return divisors(std::gcd(stage % module.expt_tp ? stage : stage / module.expt_tp, std::int64_t{num_experts}));
}

}  // namespace braid
