#include "predict/layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace braid {
namespace {

void set_split(ModuleConfig& module, const Split& split) {
  module.tp = split.tp;
  module.cp = split.cp;
  module.ep = split.ep;
  module.pp = split.pp;
  module.vpp = split.vpp;
  module.dp = split.dp;
  module.rank_offset = module.ranks = module.expt_dp = std::nullopt;
}

void put_language_first(TopologyConfig& topology) {
  const auto language = std::ranges::find(topology.modules, "language", &ModuleConfig::kind);
  language->rank_offset = 0;
  std::int64_t next = grid_size(*language);
  for (ModuleConfig& module : topology.modules) {
    if (module.kind == "language") continue;
    module.rank_offset = next;
    next += grid_size(module);
  }
}

}  // namespace

const ModuleConfig& language_of(const Recipe& recipe) {
  return *std::ranges::find(recipe.topology.modules, "language", &ModuleConfig::kind);
}

bool has_own_ranks(const ModuleConfig& module, const TopologyConfig& topology) {
  return module.kind == "encoder" && !topology.colocated;
}

std::int64_t encoder_ranks(const TopologyConfig& topology) {
  std::int64_t ranks = 0;
  for (const ModuleConfig& module : topology.modules)
    if (has_own_ranks(module, topology)) ranks += grid_size(module);
  return ranks;
}

int lanes_of(const Recipe& recipe) { return recipe.loader.lanes.value_or(language_of(recipe).dp); }

Layout layout_of(const Recipe& recipe) {
  Layout layout = {.colocated = recipe.topology.colocated, .micro_batch = recipe.train.micro_batch};
  for (const ModuleConfig& module : recipe.topology.modules)
    layout.modules.push_back({module.tp, module.cp, module.ep, module.pp, module.vpp, module.dp});
  return layout;
}

int ranks_of(const Layout& layout) {
  if (layout.colocated) return layout.modules.front().ranks();
  return std::accumulate(layout.modules.begin(), layout.modules.end(), 0,
                         [](int sum, const Split& split) { return sum + split.ranks(); });
}

Recipe with_layout(const Recipe& recipe, const Layout& layout, const Settings& settings, int ranks_per_node) {
  Recipe changed = recipe;
  TopologyConfig& topology = changed.topology;
  topology.colocated = layout.colocated;
  for (std::size_t m = 0; m < layout.modules.size(); ++m) set_split(topology.modules[m], layout.modules[m]);
  if (topology.world_size) topology.world_size = ranks_of(layout);
  if (encoder_ranks(topology) % ranks_per_node != 0) put_language_first(topology);
  if (lanes_of(recipe) % language_of(changed).dp == 0) changed.loader.lanes = lanes_of(recipe);
  changed.train.micro_batch = layout.micro_batch;
  changed.train.prefetch = settings.prefetch;
  changed.model.sequence_parallel = settings.sequence_parallel;
  changed.model.overlap = settings.overlap;
  changed.model.recompute = names_of(settings.recompute);
  changed.optimizer.overlap_grad_reduce = settings.overlap_reduce;
  changed.optimizer.overlap_param_gather = settings.overlap_gather;
  return changed;
}

std::string grids_text(const Recipe& recipe) {
  std::vector<std::string> modules;
  for (const ModuleConfig& module : recipe.topology.modules) {
    std::vector<std::string> sizes;
    for (const auto& [name, size] : {std::pair("tp", module.tp),
                                     {"cp", module.cp},
                                     {"ep", module.ep},
                                     {"pp", module.pp},
                                     {"vpp", module.vpp},
                                     {"dp", module.dp}})
      if (size > 1) sizes.push_back(fmt::format("{} {}", name, size));
    if (sizes.empty()) sizes.emplace_back("1 rank");
    modules.push_back(fmt::format("{} {}", module.name, fmt::join(sizes, ", ")));
  }
  return fmt::format("{}", fmt::join(modules, recipe.topology.colocated ? " + " : " | "));
}

std::string settings_text(const Recipe& recipe) {
  std::vector<std::string> settings = {fmt::format("micro batch {}", recipe.train.micro_batch)};
  const auto add = [&](bool is_set, std::string text) {
    if (is_set) settings.push_back(std::move(text));
  };
  add(!recipe.model.recompute.empty(), fmt::format("recompute {}", fmt::join(recipe.model.recompute, "+")));
  add(recipe.model.sequence_parallel && language_of(recipe).tp > 1, "sequence parallel");
  add(recipe.model.overlap.tp_pieces > 1, fmt::format("tp pieces {}", recipe.model.overlap.tp_pieces));
  add(recipe.model.overlap.expert_pieces > 1, fmt::format("expert pieces {}", recipe.model.overlap.expert_pieces));
  add(recipe.train.prefetch > 0, fmt::format("prefetch {}", recipe.train.prefetch));
  add(!recipe.optimizer.overlap_grad_reduce, "reductions not overlapped");
  add(!recipe.optimizer.overlap_param_gather, "gathers not overlapped");
  return fmt::format("{}", fmt::join(settings, ", "));
}

}  // namespace braid
