// One way to run a recipe: the grids of its modules, and settings that change time and memory but no result. A recipe
// can be given another layout, scaled to another number of nodes, and all its layouts can be enumerated. No libtorch
// here.
#pragma once

#include "nn/config.h"
#include "run/recipe.h"

namespace braid {

struct HardwareProfile;

struct Split {
  int tp = 1, cp = 1, ep = 1, pp = 1, vpp = 1, dp = 1;

  int ranks() const { return tp * cp * pp * dp; }
  bool operator==(const Split&) const = default;
};

struct Layout {
  bool colocated = false;
  int micro_batch = 1;
  std::vector<Split> modules{};  // in the order of the recipe

  bool operator==(const Layout&) const = default;
};

struct Settings {
  bool sequence_parallel = false;
  OverlapConfig overlap{};
  RecomputeConfig recompute{};
  int prefetch = 0;
  bool overlap_reduce = true, overlap_gather = true;
};

Layout layout_of(const Recipe& recipe);
int ranks_of(const Layout& layout);

// Encoders get the first ranks if they fill whole nodes; otherwise the language model does, so that its groups start at
// a node boundary. The number of lanes is kept if dp divides it, which preserves the order of the data.
Recipe with_layout(const Recipe& recipe, const Layout& layout, const Settings& settings, int ranks_per_node);

// "images dp 8 | language tp 2, ep 8, dp 128"; sizes of 1 are omitted.
std::string grids_text(const Recipe& recipe);
// Settings that differ from the defaults: "micro batch 2, recompute norms, prefetch 1".
std::string settings_text(const Recipe& recipe);

struct SpaceOptions {
  int gpus = 1, ranks_per_node = 8;
  // Every dp that divides the lanes of a data set reads it in the same order. If false, other layouts are allowed, too.
  bool same_data_order = true;
};

// How the language model is split. Layouts that share one of these differ only in their encoders.
struct LanguageLayout {
  bool colocated = false;
  int micro_batch = 1;
  Split split{};
};

// Every layout of a recipe on a number of GPUs that keeps its global batch and its losses, in a fixed order. Tensor
// parallelism stays within a node, encoders have no pipeline, a pipeline rank has 1, 2, 4 or 8 stages, and experts are
// split as the recipe splits them (expt_tp). GPUs may be left over.
class LayoutSpace {
 public:
  LayoutSpace(const Recipe& recipe, const SpaceOptions& options);

  const std::vector<LanguageLayout>& language() const { return language_; }
  long against_rules() const { return against_rules_; }  // rejected splits of the language model
  // All layouts with this split of the language model. The encoders' data parallelism fits that of the language model,
  // and they use whole nodes or an equal part of one. Splits are in the order of the recipe's modules.
  std::vector<Layout> layouts_of(const LanguageLayout& language) const;

 private:
  bool keeps(bool is_allowed);
  void find_supported_splits();
  void add_language(bool colocated);
  void add_splits(LanguageLayout layout);
  bool is_possible(const Split& language) const;
  std::vector<Split> encoder_splits(std::size_t module, const LanguageLayout& language) const;

  const Recipe& recipe_;
  const SpaceOptions options_;
  std::size_t language_module_ = 0;
  std::vector<Split> tp_cp_, stages_;         // that the language model supports
  std::vector<std::vector<int>> encoder_tp_;  // by module: that it supports
  std::vector<LanguageLayout> language_;
  long against_rules_ = 0;
};

// --- scaling to another number of nodes

struct NodeCounts {
  int nodes = 1;
  std::optional<int> encoder_nodes{};
};

// Throws a ConfigError: a CPU's profile describes one host, and a world has at most kMaxWorldSize ranks.
void check_nodes(const NodeCounts& counts, const HardwareProfile& hardware);

struct ScaledRecipe {
  Recipe recipe;
  std::string how{};  // "language.dp 32 -> 64, global_batch 192 -> 384"
};

// Changes the data parallelism of the language model and, in proportion, the global batch, so that a replica still runs
// as many microbatches. Encoders on ranks of their own get `encoder_nodes` and change their dp in proportion; by
// default they keep their ranks. Colocated encoders change like the language model. A ConfigError names nearby numbers
// of nodes if no whole number of replicas fills the nodes, or if the scaled recipe breaks a rule.
ScaledRecipe scale_to_nodes(const Recipe& recipe, const NodeCounts& counts, const HardwareProfile& hardware);

}  // namespace braid
