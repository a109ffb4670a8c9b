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

int encoder_ranks(const TopologyConfig& topology) {
  std::int64_t ranks = 0;
  for (const ModuleConfig& module : topology.modules)
    if (module.kind == "encoder") ranks += grid_size(module);
  return static_cast<int>(ranks);
}

void put_language_first(TopologyConfig& topology) {
  const auto is_language = [](const ModuleConfig& module) { return module.kind == "language"; };
  int next = static_cast<int>(grid_size(*std::ranges::find_if(topology.modules, is_language)));
  for (ModuleConfig& module : topology.modules) {
    module.rank_offset = is_language(module) ? 0 : next;
    if (!is_language(module)) next += static_cast<int>(grid_size(module));
  }
}

}  // namespace

const ModuleConfig& language_of(const Recipe& recipe) {
  return *std::ranges::find(recipe.topology.modules, "language", &ModuleConfig::kind);
}

int lanes_of(const Recipe& recipe) { return recipe.loader.lanes.value_or(language_of(recipe).dp); }

Layout layout_of(const Recipe& recipe) {
  Layout layout = {.colocated = recipe.topology.colocated, .micro_batch = recipe.train.micro_batch};
  for (const ModuleConfig& module : recipe.topology.modules)
    layout.modules.push_back({module.tp, module.cp, module.ep, module.pp, module.vpp, module.dp});
  return layout;
}

Settings settings_of(const Recipe& recipe) {
  return {.sequence_parallel = recipe.model.sequence_parallel,
          .overlap = recipe.model.overlap,
          .recompute = recompute_config(recipe.model.recompute),
          .prefetch = recipe.train.prefetch,
          .overlap_reduce = recipe.optimizer.overlap_grad_reduce,
          .overlap_gather = recipe.optimizer.overlap_param_gather};
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
  if (!topology.colocated && encoder_ranks(topology) % ranks_per_node != 0) put_language_first(topology);
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
    const auto add = [&](const char* name, int size) {
      if (size > 1) sizes.push_back(fmt::format("{} {}", name, size));
    };
    add("tp", module.tp);
    add("cp", module.cp);
    add("ep", module.ep);
    add("pp", module.pp);
    add("vpp", module.vpp);
    add("dp", module.dp);
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
