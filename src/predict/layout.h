// One way to run a recipe: the grids of its modules, and settings that change time and memory but no result.
#pragma once

#include <string>
#include <vector>

#include "nn/config.h"
#include "run/recipe.h"

namespace braid {

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

// The number of a run's independent sample streams, which determines the order of a data set's samples.
int lanes_of(const Recipe& recipe);

const ModuleConfig& language_of(const Recipe& recipe);

// Encoders on ranks of their own, not the language model's, and the number of these ranks.
bool has_own_ranks(const ModuleConfig& module, const TopologyConfig& topology);
std::int64_t encoder_ranks(const TopologyConfig& topology);

// "images dp 8 | language tp 2, ep 8, dp 128"; sizes of 1 are omitted.
std::string grids_text(const Recipe& recipe);
// Settings that differ from the defaults: "micro batch 2, recompute norms, prefetch 1".
std::string settings_text(const Recipe& recipe);

}  // namespace braid
