#include "predict/scale_nodes.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/strings.h"
#include "plan/topology_config.h"

namespace braid {
namespace {

class Scaling {
 public:
  Scaling(const Recipe& recipe, const NodeCounts& counts, int ranks_per_node)
      : before_(recipe), counts_(counts), ranks_(std::int64_t{counts.nodes} * ranks_per_node), scaled_{recipe} {
    for (const ModuleConfig& module : topology().modules)
      if (has_own_ranks(module)) encoder_ranks_ += grid_size(module);
    if (counts.encoder_nodes) wanted_encoder_ranks_ = std::int64_t{*counts.encoder_nodes} * ranks_per_node;
  }

  ScaledRecipe run() {
    if (wanted_encoder_ranks_ && encoder_ranks_ == 0)
      throw ConfigError({"no encoder of the recipe has ranks of its own", "--encoder-nodes",
                         "leave it out, or set topology.colocated to false"});
    for (ModuleConfig& module : topology().modules) {
      if (has_own_ranks(module))
        scale_encoder(module);
      else
        scale_shared(module);
      module.rank_offset = module.ranks = module.expt_dp = std::nullopt;
    }
    topology().world_size = std::nullopt;
    note("global_batch", before_.train.global_batch, scaled_.recipe.train.global_batch);
    return std::move(scaled_);
  }

 private:
  TopologyConfig& topology() { return scaled_.recipe.topology; }
  bool has_own_ranks(const ModuleConfig& module) { return module.kind == "encoder" && !topology().colocated; }

  void scale_encoder(ModuleConfig& module) {
    if (!wanted_encoder_ranks_) return;
    const std::int64_t replicas = *wanted_encoder_ranks_ * module.dp;
    if (replicas % encoder_ranks_ != 0)
      fail("--encoder-nodes",
           fmt::format("{} has {} replicas on {} ranks; {} ranks would not have a whole number of them", module.name,
                       module.dp, encoder_ranks_, *wanted_encoder_ranks_));
    set_dp(module, replicas / encoder_ranks_);
  }

  // The language model, and encoders that share its ranks.
  void scale_shared(ModuleConfig& module) {
    const std::int64_t left = ranks_ - wanted_encoder_ranks_.value_or(encoder_ranks_);
    const std::int64_t of_replica = std::int64_t{module.tp} * module.cp * module.pp;
    if (left <= 0 || left % of_replica != 0)
      fail("--nodes", fmt::format("{} nodes have {} ranks, of which {} are left for {}, whose replicas have {}",
                                  counts_.nodes, ranks_, std::max<std::int64_t>(0, left), module.name, of_replica));
    const int before = module.dp;
    set_dp(module, left / of_replica);
    if (module.kind == "encoder") return;
    const std::int64_t batch = std::int64_t{before_.train.global_batch} / before * module.dp;
    scaled_.recipe.train.global_batch = checked(batch);
  }

  void set_dp(ModuleConfig& module, std::int64_t dp) {
    note(module.name + ".dp", module.dp, dp);
    module.dp = checked(dp);
  }

  static int checked(std::int64_t number) {
    if (number > std::numeric_limits<int>::max())
      fail("--nodes", fmt::format("a dp or global batch of {} is larger than braid can count", number));
    return static_cast<int>(number);
  }

  void note(const std::string& name, std::int64_t before, std::int64_t after) {
    scaled_.how += fmt::format("{}{} {} -> {}", scaled_.how.empty() ? "" : ", ", name, before, after);
  }

  [[noreturn]] static void fail(const char* where, const std::string& what) {
    throw ConfigError({what, where, "use another number of nodes, or change the modules, e.g. with --llm-tp"});
  }

  const Recipe& before_;
  const NodeCounts counts_;
  const std::int64_t ranks_;
  std::int64_t encoder_ranks_ = 0;
  std::optional<std::int64_t> wanted_encoder_ranks_;
  ScaledRecipe scaled_;
};

bool fits(const Recipe& recipe, const NodeCounts& counts, int ranks_per_node) {
  try {
    return validate(Scaling(recipe, counts, ranks_per_node).run().recipe).empty();
  } catch (const ConfigError&) {
    return false;
  }
}

// The nearest numbers of nodes that fit.
std::string fix_of(const Recipe& recipe, NodeCounts counts, int ranks_per_node) {
  constexpr int kFarthest = 256;
  const int wanted = counts.nodes;
  std::vector<std::string> near;
  for (const int direction : {-1, 1})
    for (int distance = 1; distance <= kFarthest && wanted + direction * distance > 0; ++distance) {
      counts.nodes = wanted + direction * distance;
      if (!fits(recipe, counts, ranks_per_node)) continue;
      near.push_back(fmt::format("--nodes {}", counts.nodes));
      break;
    }
  return near.empty() ? "change the modules, e.g. with --llm-tp" : fmt::format("use {}", fmt::join(near, " or "));
}

}  // namespace

ScaledRecipe scale_to_nodes(const Recipe& recipe, const NodeCounts& counts, int ranks_per_node) {
  ScaledRecipe scaled = Scaling(recipe, counts, ranks_per_node).run();
  const std::vector<Problem> problems = validate(scaled.recipe);
  if (problems.empty()) return scaled;
  throw ConfigError(
      {fmt::format("the recipe cannot be scaled to {}: {}", counted(counts.nodes, "node"), problems.front().what),
       "--nodes", fix_of(recipe, counts, ranks_per_node)});
}

}  // namespace braid
