#include "predict/layout.h"
#include <fmt/ranges.h>
#include "base/strings.h"
#include "predict/hardware.h"
#include "predict/step_draws.h"

namespace braid {
namespace {

constexpr int kMostStagesPerRank = 8;  // with more, stages are too short to hide their transfers

std::size_t index_of_language(const Recipe& recipe) {
  const std::vector<ModuleConfig>& modules = recipe.topology.modules;
  return std::ranges::find(modules, ModuleKind::Language, &ModuleConfig::kind) - modules.begin();
}

const ModuleConfig& language_of(const Recipe& recipe) { return recipe.topology.modules[index_of_language(recipe)]; }

// The number of a run's independent sample streams, which determines the order of a data set's samples.
int lanes_of(const Recipe& recipe) { return recipe.loader.lanes.value_or(language_of(recipe).dp); }

// An encoder with ranks that the language model does not share.
bool has_own_ranks(const ModuleConfig& module, const TopologyConfig& topology) {
  return module.kind == ModuleKind::Encoder && !topology.colocated;
}

std::int64_t encoder_ranks(const TopologyConfig& topology) {
  std::int64_t ranks = 0;
  for (const ModuleConfig& module : topology.modules)
    if (has_own_ranks(module, topology)) ranks += grid_size(module);
  return ranks;
}

void put_language_first(Recipe& recipe) {
  std::vector<ModuleConfig>& modules = recipe.topology.modules;
  const std::size_t language = index_of_language(recipe);
  std::int64_t next = grid_size(modules[language]);
  modules[language].rank_offset = 0;
  for (std::size_t m = 0; m < modules.size(); ++m) {
    if (m == language) continue;
    modules[m].rank_offset = next;
    next += grid_size(modules[m]);
  }
}

}  // namespace

Layout layout_of(const Recipe& recipe) {
  Layout layout = {.colocated = recipe.topology.colocated, .micro_batch = recipe.train.micro_batch};
  for (const ModuleConfig& module : recipe.topology.modules)
    layout.modules.push_back({module.tp, module.cp, module.ep, module.pp, module.vpp, module.dp});
  return layout;
}

int ranks_of(const Layout& layout) {
  if (layout.colocated) return layout.modules.front().ranks();
  return sum_of<int>(layout.modules, &Split::ranks);
}

Recipe with_layout(const Recipe& recipe, const Layout& layout, const Settings& settings, int ranks_per_node) {
  Recipe changed = recipe;
  TopologyConfig& topology = changed.topology;
  topology.colocated = layout.colocated;
  for (std::size_t m = 0; m < layout.modules.size(); ++m) {
    ModuleConfig& module = topology.modules[m];
    const auto& [tp, cp, ep, pp, vpp, dp] = layout.modules[m];
    module = {.name = module.name,
              .kind = module.kind,
              .tp = tp,
              .cp = cp,
              .dp = dp,
              .pp = pp,
              .vpp = vpp,
              .ep = ep,
              .expt_tp = module.expt_tp};
  }
  if (topology.world_size) topology.world_size = ranks_of(layout);
  if (encoder_ranks(topology) % ranks_per_node != 0) put_language_first(changed);
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
  for (const ModuleConfig& m : recipe.topology.modules) {
    std::vector<std::string> sizes;
    for (const auto& [name, size] :
         {std::pair("tp", m.tp), {"cp", m.cp}, {"ep", m.ep}, {"pp", m.pp}, {"vpp", m.vpp}, {"dp", m.dp}})
      if (size > 1) sizes.push_back(fmt::format("{} {}", name, size));
    if (sizes.empty()) sizes.emplace_back("1 rank");
    modules.push_back(fmt::format("{} {}", m.name, fmt::join(sizes, ", ")));
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

// --- the space of layouts

LayoutSpace::LayoutSpace(const Recipe& recipe, const SpaceOptions& options)
    : recipe_(recipe), options_(options), language_module_(index_of_language(recipe)) {
  find_supported_splits();
  add_language(false);
  if (recipe.topology.modules.size() > 1) add_language(true);
}

bool LayoutSpace::keeps(bool is_allowed) {
  if (!is_allowed) ++against_rules_;
  return is_allowed;
}

void LayoutSpace::find_supported_splits() {
  const Provider& model = recipe_.model.model;
  for (const ModuleConfig& module : recipe_.topology.modules) {
    std::vector<int>& supported = encoder_tp_.emplace_back();
    for (int tp = 1; module.kind == ModuleKind::Encoder && tp <= options_.ranks_per_node; ++tp)
      if (validate_encoder(model, encoder_named(model, module.name), {.tp = tp}, "model").empty())
        supported.push_back(tp);
  }
  for (int tp = 1; tp <= std::min(options_.ranks_per_node, options_.gpus); ++tp)
    for (int cp = 1; tp * cp <= options_.gpus; ++cp)
      if (keeps(is_possible({.tp = tp, .cp = cp}))) tp_cp_.push_back({.tp = tp, .cp = cp});
  const int layers = std::visit([](const auto& c) { return stage_bounds(c, 1).back(); }, model.language);
  for (int pp = 1; pp <= std::min(options_.gpus, layers); ++pp)
    for (int vpp = 1; vpp <= (pp == 1 ? 1 : kMostStagesPerRank) && pp * vpp <= layers; vpp *= 2)
      if (keeps(is_possible({.pp = pp, .vpp = vpp}))) stages_.push_back({.pp = pp, .vpp = vpp});
}

bool LayoutSpace::is_possible(const Split& split) const {
  Recipe trial = smallest(recipe_);
  trial.train.global_batch = recipe_.train.global_batch;
  ModuleConfig& language = trial.topology.modules[language_module_];
  language.tp = split.tp;
  language.cp = split.cp;
  language.pp = split.pp;
  // Interleaving depends on the number of microbatches, but the model depends only on the number of stages.
  if (split.vpp == 1) return validate(trial).empty();
  const LayoutSizes sizes = {.tp = split.tp, .cp = split.cp, .pp = split.pp, .vpp = split.vpp};
  return validate_language(trial.model.model, sizes, "model").empty();
}

void LayoutSpace::add_language(bool colocated) {
  const int samples = recipe_.train.global_batch;
  const bool any_order = !options_.same_data_order || is_mock(recipe_.data);
  for (const int micro_batch : divisors(samples))
    for (const int dp : divisors(samples / micro_batch))
      if (dp <= options_.gpus && keeps(any_order || lanes_of(recipe_) % dp == 0))
        add_splits({.colocated = colocated, .micro_batch = micro_batch, .split = {.dp = dp}});
}

void LayoutSpace::add_splits(LanguageLayout layout) {
  const int encoders = static_cast<int>(recipe_.topology.modules.size()) - 1;
  const int most = options_.gpus - (layout.colocated ? 0 : encoders), dp = layout.split.dp;
  const int microbatches = recipe_.train.global_batch / layout.micro_batch / dp;
  const int experts = experts_of(recipe_.model.model.language), expt_tp = language_of(recipe_).expt_tp;
  for (const Split& ranks : tp_cp_)
    for (const Split& stages : stages_) {
      const int pp = stages.pp, vpp = stages.vpp;
      layout.split = {.tp = ranks.tp, .cp = ranks.cp, .pp = pp, .vpp = vpp, .dp = dp};
      if (layout.split.ranks() > most || !keeps(vpp == 1 || microbatches == 1 || microbatches % pp == 0)) continue;
      for (const int ep : divisors(std::max(experts, 1))) {
        layout.split.ep = ep;
        if (keeps(ranks.tp * ranks.cp * dp % (ep * expt_tp) == 0)) language_.push_back(layout);
      }
    }
}

std::vector<Split> LayoutSpace::encoder_splits(std::size_t module, const LanguageLayout& language) const {
  const int ranks = language.split.ranks(), left = language.colocated ? ranks : options_.gpus - ranks;
  const int samples = language.micro_batch * language.split.dp, per_node = options_.ranks_per_node;
  std::vector<Split> splits;
  for (const int dp : divisors(samples)) {
    const int larger = std::max(dp, language.split.dp), smaller = std::min(dp, language.split.dp);
    if (larger % smaller != 0) continue;
    // The correction scales gradients by the number of replicas with input.
    if (recipe_.train.correct_partial_participation && dp != recipe_.topology.modules[module].dp) continue;
    for (const int tp : encoder_tp_[module]) {
      const int own = tp * dp;
      const bool fills_nodes_evenly = own % per_node == 0 || per_node % own == 0;
      if (language.colocated ? own == ranks : own <= left && fills_nodes_evenly) splits.push_back({.tp = tp, .dp = dp});
    }
  }
  return splits;
}

std::vector<Layout> LayoutSpace::layouts_of(const LanguageLayout& language) const {
  std::vector<Layout> layouts = {{.colocated = language.colocated, .micro_batch = language.micro_batch}};
  for (std::size_t m = 0; m < recipe_.topology.modules.size(); ++m) {
    const std::vector<Split> splits = m == language_module_ ? std::vector{language.split} : encoder_splits(m, language);
    std::vector<Layout> longer;
    for (const Layout& layout : layouts)
      for (const Split& split : splits) longer.emplace_back(layout).modules.push_back(split);
    layouts = std::move(longer);
  }
  std::erase_if(layouts, [&](const Layout& layout) { return ranks_of(layout) > options_.gpus; });
  return layouts;
}

// --- scaling to another number of nodes

namespace {

// The data parallelism of an encoder on ranks of its own. Throws a Problem, as the next functions do.
std::int64_t encoder_dp(const ModuleConfig& module, std::int64_t ranks, std::int64_t new_ranks) {
  if (ranks == new_ranks) return module.dp;
  const std::int64_t replicas = new_ranks * module.dp;
  if (replicas % ranks == 0) return replicas / ranks;
  throw Problem{fmt::format("{} instead of {} for encoders would give {} {:.4g} replicas instead of {}", new_ranks,
                            counted(ranks, "rank"), module.name, static_cast<double>(replicas) / ranks, module.dp),
                "--encoder-nodes", ""};
}

// That of the language model and of encoders that share its ranks: `left` of all `ranks`.
std::int64_t shared_dp(const ModuleConfig& module, std::int64_t left, std::int64_t ranks) {
  const std::int64_t of_replica = std::int64_t{module.tp} * module.cp * module.pp;
  if (left > 0 && left % of_replica == 0) return left / of_replica;
  throw Problem{fmt::format("{} of {} are left for {}, whose replicas have {} each", left, counted(ranks, "rank"),
                            module.name, of_replica),
                "--nodes", ""};
}

ScaledRecipe scaled(const Recipe& recipe, const NodeCounts& counts, int ranks_per_node) {
  ScaledRecipe result = {recipe};
  TopologyConfig& topology = result.recipe.topology;
  int& global_batch = result.recipe.train.global_batch;
  const auto note = [&](const std::string& name, std::int64_t before, std::int64_t after) {
    if (before != after)
      result.how += fmt::format("{}{} {} -> {}", result.how.empty() ? "" : ", ", name, before, after);
  };
  const std::int64_t per_node = ranks_per_node, ranks = counts.nodes * per_node, of_encoders = encoder_ranks(topology),
                     new_of_encoders = counts.encoder_nodes ? *counts.encoder_nodes * per_node : of_encoders;
  if (ranks > kMaxWorldSize)
    throw Problem{fmt::format("the largest possible world has {} ranks, not {}", kMaxWorldSize, ranks), "--nodes", ""};
  for (ModuleConfig& module : topology.modules) {
    const int before = module.dp;
    module.dp = static_cast<int>(has_own_ranks(module, topology)
                                     ? encoder_dp(module, of_encoders, new_of_encoders)
                                     : shared_dp(module, std::max<std::int64_t>(0, ranks - new_of_encoders), ranks));
    note(module.name + ".dp", before, module.dp);
    module.rank_offset = module.ranks = module.expt_dp = std::nullopt;
    if (module.kind == ModuleKind::Encoder) continue;
    const std::int64_t batch = std::int64_t{global_batch} / before * module.dp;
    if (batch > std::numeric_limits<int>::max())
      throw Problem{fmt::format("a global batch of {} is larger than braid can count", batch), "--nodes", ""};
    global_batch = static_cast<int>(batch);
  }
  topology.world_size = std::nullopt;
  note("global_batch", recipe.train.global_batch, global_batch);
  if (const std::vector<Problem> problems = validate(result.recipe); !problems.empty())
    throw Problem{problems.front().what, "--nodes", ""};
  return result;
}

// Suggests options near the given ones; each fits if it alone is changed or added.
std::string fix_of(const Recipe& recipe, const NodeCounts& wanted, int ranks_per_node) {
  constexpr int kFarthest = 256;
  const std::int64_t most = kMaxWorldSize / ranks_per_node, nodes = wanted.nodes;
  const auto fits = [&](const NodeCounts& counts) {
    try {
      scaled(recipe, counts, ranks_per_node);
      return true;
    } catch (const Problem&) {
      return false;
    }
  };
  std::vector<std::string> options;
  // Adds the first number from `from` on, downwards or upwards within 1 to `last`, with which the recipe fits.
  const auto add_first = [&](bool of_encoders, std::int64_t from, int direction, std::int64_t last) {
    for (int distance = 0; distance < kFarthest; ++distance) {
      const std::int64_t count = from + direction * distance;
      if (count < 1 || count > last) return;
      const int n = static_cast<int>(count);
      if (fits(of_encoders ? NodeCounts{wanted.nodes, n} : NodeCounts{n, wanted.encoder_nodes}))
        return options.push_back(fmt::format("{} {}", of_encoders ? "--encoder-nodes" : "--nodes", n));
    }
  };
  add_first(false, std::min(nodes - 1, most), -1, most);
  add_first(false, nodes + 1, 1, most);
  // Without --encoder-nodes, the ranks of encoders may fill only a part of their last node.
  if (std::int64_t ranks = encoder_ranks(recipe.topology); ranks > 0) {
    if (wanted.encoder_nodes) ranks = std::int64_t{*wanted.encoder_nodes} * ranks_per_node;
    const std::int64_t last = std::min(nodes, most) - 1;
    add_first(true, std::min((ranks - 1) / ranks_per_node, last), -1, last);
    add_first(true, ranks / ranks_per_node + 1, 1, last);
  }
  if (options.empty() && wanted.encoder_nodes && fits({wanted.nodes})) return "leave out --encoder-nodes";
  return options.empty() ? "change the modules, e.g. with --llm-tp" : "use " + joined_by_or(options);
}

void check_host(const NodeCounts& counts, const HardwareProfile& hardware) {
  if (!is_host(hardware)) return;
  const auto fail = [&](const std::string& what, const char* option, const char* fix) {
    throw ConfigError({fmt::format("the CPU profile '{}' describes one host, {}", hardware.name, what), option, fix});
  };
  if (counts.encoder_nodes) fail("so encoders cannot have nodes of their own", "--encoder-nodes", "leave it out");
  if (counts.nodes > 1)
    fail(fmt::format("not {}", counted(counts.nodes, "node")), "--nodes",
         "leave it out to have as many ranks as the recipe on the host, or use --nodes 1 for the profile's "
         "ranks_per_node");
}

}  // namespace

void check_nodes(const NodeCounts& counts, const HardwareProfile& hardware) {
  check_host(counts, hardware);
  if (const int most = kMaxWorldSize / hardware.ranks_per_node; counts.nodes > most)
    throw ConfigError({fmt::format("{} have more than {} ranks, the largest possible world",
                                   counted(counts.nodes, "node"), kMaxWorldSize),
                       "--nodes", fmt::format("use at most {}", most)});
}

ScaledRecipe scale_to_nodes(const Recipe& recipe, const NodeCounts& counts, const HardwareProfile& hardware) {
  check_host(counts, hardware);
  if (counts.encoder_nodes && encoder_ranks(recipe.topology) == 0)
    throw ConfigError({"no encoder of the recipe has ranks of its own", "--encoder-nodes",
                       "leave it out, or set topology.colocated to false"});
  try {
    return scaled(recipe, counts, hardware.ranks_per_node);
  } catch (const Problem& reason) {
    throw ConfigError({fmt::format("the recipe cannot be scaled to {}: {}", counted(counts.nodes, "node"), reason.what),
                       reason.where,
                       is_host(hardware) ? "leave out --nodes, or change the modules, e.g. with --llm-tp"
                                         : fix_of(recipe, counts, hardware.ranks_per_node)});
  }
}

}  // namespace braid
