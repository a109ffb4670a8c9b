#include "predict/layout_space.h"

#include <algorithm>

#include "models/providers.h"
#include "plan/topology_config.h"
#include "predict/typical_step.h"

namespace braid {
namespace {

std::vector<int> sorted_divisors(int n) {
  std::vector<int> all;
  for (const std::int64_t divisor : divisors(n)) all.push_back(static_cast<int>(divisor));
  std::ranges::sort(all);
  return all;
}

int layers_of(const LanguageConfig& config) {
  return std::visit([](const auto& c) { return stage_bounds(c, 1).back(); }, config);
}

constexpr int kMostStagesPerRank = 8;  // with more, stages are too short to hide their transfers

LayoutSizes layout_of(const Split& split) { return {.tp = split.tp, .cp = split.cp, .pp = split.pp, .vpp = split.vpp}; }

bool fills_nodes_evenly(int ranks, int ranks_per_node) {
  return ranks % ranks_per_node == 0 || ranks_per_node % ranks == 0;
}

}  // namespace

LayoutSpace::LayoutSpace(const Recipe& recipe, const SpaceOptions& options) : recipe_(recipe), options_(options) {
  const std::vector<ModuleConfig>& modules = recipe.topology.modules;
  for (std::size_t m = 0; m < modules.size(); ++m) {
    const bool is_language = modules[m].kind == "language";
    if (is_language) language_module_ = m;
    encoder_tp_.push_back(is_language ? std::vector<int>{} : supported_tp(modules[m]));
  }
  encoders_ = static_cast<int>(modules.size()) - 1;
  for (int tp = 1; tp <= std::min(options.ranks_per_node, options.gpus); ++tp)
    for (int cp = 1; tp * cp <= options.gpus; ++cp)
      if (is_possible({.tp = tp, .cp = cp}))
        tp_cp_.emplace_back(tp, cp);
      else
        ++against_rules_;
  const int layers = layers_of(recipe.model.model.language);
  for (int pp = 1; pp <= std::min(options.gpus, layers); ++pp)
    for (int vpp = 1; vpp <= (pp == 1 ? 1 : kMostStagesPerRank) && pp * vpp <= layers; vpp *= 2)
      if (is_possible({.pp = pp, .vpp = vpp}))
        stages_.push_back({pp, vpp});
      else
        ++against_rules_;
  add_language(false);
  if (encoders_ > 0) add_language(true);
}

bool LayoutSpace::is_possible(const Split& split) const {
  Recipe trial = smallest(recipe_);
  trial.train.global_batch = recipe_.train.global_batch;
  ModuleConfig& language = trial.topology.modules[language_module_];
  language.tp = split.tp;
  language.cp = split.cp;
  language.pp = split.pp;
  // Interleaving depends on the number of microbatches, but the model depends only on the number of stages.
  if (split.vpp > 1) return validate_language(trial.model.model, layout_of(split), "model").empty();
  return validate(trial).empty();
}

std::vector<int> LayoutSpace::supported_tp(const ModuleConfig& encoder) const {
  const Provider& model = recipe_.model.model;
  const EncoderConfig& config = encoder_named(model, encoder.name);
  std::vector<int> supported;
  for (int tp = 1; tp <= options_.ranks_per_node; ++tp)
    if (validate_encoder(model, config, {.tp = tp}, "model").empty()) supported.push_back(tp);
  return supported;
}

void LayoutSpace::add_language(bool colocated) {
  const int samples = recipe_.train.global_batch;
  for (const int micro_batch : sorted_divisors(samples))
    for (const int dp : sorted_divisors(samples / micro_batch)) {
      if (dp > options_.gpus) continue;
      if (options_.same_data_order && !is_mock(recipe_.data) && lanes_of(recipe_) % dp != 0)
        ++against_rules_;
      else
        add_splits(colocated, micro_batch, dp);
    }
}

void LayoutSpace::add_splits(bool colocated, int micro_batch, int dp) {
  const int most = options_.gpus - (colocated ? 0 : encoders_);
  const int microbatches = recipe_.train.global_batch / micro_batch / dp;
  for (const auto& [tp, cp] : tp_cp_)
    for (const auto& [pp, vpp] : stages_) {
      const Split split = {.tp = tp, .cp = cp, .pp = pp, .vpp = vpp, .dp = dp};
      if (split.ranks() > most) continue;
      const bool interleaves = vpp == 1 || microbatches == 1 || microbatches % pp == 0;
      if (interleaves)
        add_experts({.colocated = colocated, .micro_batch = micro_batch, .split = split});
      else
        ++against_rules_;
    }
}

void LayoutSpace::add_experts(LanguageLayout layout) {
  const int experts = experts_of(recipe_.model.model.language), expt_tp = language_of(recipe_).expt_tp;
  const int ranks = layout.split.tp * layout.split.cp * layout.split.dp;
  for (const int ep : experts > 0 ? sorted_divisors(experts) : std::vector{1}) {
    layout.split.ep = ep;
    if (ranks % (ep * expt_tp) == 0)
      language_.push_back(layout);
    else
      ++against_rules_;
  }
}

std::vector<Split> LayoutSpace::encoder_splits(std::size_t module, const LanguageLayout& language) const {
  const int ranks = language.split.ranks(), left = language.colocated ? ranks : options_.gpus - ranks;
  const int samples = language.micro_batch * language.split.dp;
  std::vector<Split> splits;
  for (const int dp : sorted_divisors(samples)) {
    const int larger = std::max(dp, language.split.dp), smaller = std::min(dp, language.split.dp);
    if (larger % smaller != 0) continue;
    // The correction scales gradients by the number of replicas with input.
    if (recipe_.train.correct_partial_participation && dp != recipe_.topology.modules[module].dp) continue;
    for (const int tp : encoder_tp_[module]) {
      const bool fits = language.colocated ? tp * dp == ranks
                                           : tp * dp <= left && fills_nodes_evenly(tp * dp, options_.ranks_per_node);
      if (fits) splits.push_back({.tp = tp, .dp = dp});
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
      for (const Split& split : splits) {
        longer.push_back(layout);
        longer.back().modules.push_back(split);
      }
    layouts = std::move(longer);
  }
  std::erase_if(layouts, [&](const Layout& layout) { return ranks_of(layout) > options_.gpus; });
  return layouts;
}

}  // namespace braid
