#include "plan/topology_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/strings.h"

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

namespace {

using Problems = std::vector<Problem>;

std::string text_of(const RankSpan& span) {
  return span.size() == 1 ? fmt::format("rank {}", span.begin) : fmt::format("ranks {}-{}", span.begin, span.end - 1);
}

Problems colocation_problems(const TopologyConfig& config, const std::vector<RankSpan>& spans) {
  Problems problems;
  const ModuleConfig& first = config.modules[0];
  for (std::size_t i = 1; i < spans.size(); ++i) {
    const ModuleConfig& module = config.modules[i];
    const std::string what = fmt::format("colocated modules share all their ranks, but '{}' has {} and '{}' has {}",
                                         first.name, text_of(spans[0]), module.name, text_of(spans[i]));
    if (spans[i].begin != spans[0].begin)
      problems.push_back({what, key_of(module, "rank_offset"), fmt::format("use rank_offset={}", spans[0].begin)});
    else if (spans[i].end != spans[0].end)
      problems.push_back({what, key_of(module),
                          use_one_of({dp_for(module, spans[0].size()), dp_for(first, spans[i].size()),
                                      "sizes whose products are equal"})});
  }
  return problems;
}

Problems overlap_problems(const TopologyConfig& config, const std::vector<RankSpan>& spans) {
  Problems problems;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    for (std::size_t j = i + 1; j < spans.size(); ++j) {
      const RankSpan shared = {std::max(spans[i].begin, spans[j].begin), std::min(spans[i].end, spans[j].end)};
      if (shared.size() <= 0) continue;
      const auto [left, right] = spans[i].begin <= spans[j].begin ? std::pair(i, j) : std::pair(j, i);
      const ModuleConfig& moving = config.modules[right];
      problems.push_back({fmt::format("modules '{}' ({}) and '{}' ({}) both claim {}", config.modules[i].name,
                                      text_of(spans[i]), config.modules[j].name, text_of(spans[j]), text_of(shared)),
                          key_of(moving, "rank_offset"),
                          fmt::format("use {}.rank_offset={}, or topology.colocated=true if they should share ranks",
                                      moving.name, spans[left].end)});
    }
  }
  return problems;
}

Problems gap_problems(const TopologyConfig& config, const std::vector<RankSpan>& spans) {
  std::vector<std::size_t> by_rank(spans.size());
  std::iota(by_rank.begin(), by_rank.end(), std::size_t{0});
  std::sort(by_rank.begin(), by_rank.end(), [&](auto a, auto b) { return spans[a].begin < spans[b].begin; });
  Problems problems;
  std::int64_t covered = 0;
  for (std::size_t i : by_rank) {
    const RankSpan gap = {covered, spans[i].begin};
    if (gap.size() > 0)
      problems.push_back({fmt::format("no module uses {}", text_of(gap)), key_of(config.modules[i], "rank_offset"),
                          fmt::format("use {}.rank_offset={}", config.modules[i].name, gap.begin)});
    covered = spans[i].end;
  }
  const RankSpan rest = {covered, config.world_size.value_or(covered)};
  if (rest.size() > 0) {
    const ModuleConfig& last = config.modules[by_rank.back()];
    problems.push_back({fmt::format("no module uses {} of the world of {}", text_of(rest), rest.end),
                        "topology.world_size",
                        use_one_of({fmt::format("world_size={}", covered),
                                    dp_for(last, spans[by_rank.back()].size() + rest.size())})});
  }
  return problems;
}

Problems world_end_problems(const TopologyConfig& config, const std::vector<RankSpan>& spans) {
  const int limit = std::min(config.world_size.value_or(kMaxWorldSize), kMaxWorldSize);
  const std::string world = limit < kMaxWorldSize ? "the world" : "the largest possible world";
  const std::int64_t needed = world_size_of(config);
  const bool may_grow = config.world_size && needed <= kMaxWorldSize;
  Problems problems;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].end <= limit) continue;
    const ModuleConfig& module = config.modules[i];
    problems.push_back({fmt::format("module '{}' has {}, but rank {} is beyond {} of {}", module.name,
                                    text_of(spans[i]), spans[i].end - 1, world, limit),
                        may_grow ? "topology.world_size" : key_of(module, "rank_offset"),
                        use_one_of({may_grow ? fmt::format("world_size={}", needed) : "a smaller rank_offset",
                                    dp_for(module, limit - spans[i].begin)})});
  }
  return problems;
}

}  // namespace

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

std::vector<Problem> placement_problems(const TopologyConfig& config) {
  const std::vector<RankSpan> spans = module_spans(config);
  Problems problems = config.colocated ? colocation_problems(config, spans) : overlap_problems(config, spans);
  // Unused ranks are only reported once no modules overlap.
  if (problems.empty()) problems = gap_problems(config, spans);
  for (Problem& problem : world_end_problems(config, spans)) problems.push_back(std::move(problem));
  return problems;
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

std::string smaller_size(ModuleConfig module) {
  const std::pair<const char*, int*> sizes[] = {
      {"tp", &module.tp}, {"cp", &module.cp}, {"dp", &module.dp}, {"pp", &module.pp}};
  const auto [name, size] =
      *std::max_element(std::begin(sizes), std::end(sizes), [](auto& a, auto& b) { return *a.second < *b.second; });
  *size = 1;
  const std::int64_t room = kMaxWorldSize / grid_size(module);
  return room ? fmt::format("{}={} or less", name, room) : "smaller sizes";
}

std::vector<std::int64_t> possible_ep(const ModuleConfig& module, int num_experts) {
  const std::int64_t stage = std::int64_t{module.tp} * module.cp * module.dp;
  return divisors(std::gcd(stage % module.expt_tp ? stage : stage / module.expt_tp, std::int64_t{num_experts}));
}

}  // namespace braid
