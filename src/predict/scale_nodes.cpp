#include "predict/scale_nodes.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "base/error.h"
#include "base/strings.h"
#include "plan/topology_config.h"
#include "predict/hardware.h"

namespace braid {
namespace {

struct DoesNotFit {
  std::string what, where;
};

bool has_own_ranks(const ModuleConfig& module, const TopologyConfig& topology) {
  return module.kind == "encoder" && !topology.colocated;
}

// The number of ranks of encoders that do not share the language model's.
std::int64_t encoder_ranks(const TopologyConfig& topology) {
  std::int64_t ranks = 0;
  for (const ModuleConfig& module : topology.modules)
    if (has_own_ranks(module, topology)) ranks += grid_size(module);
  return ranks;
}

class Scaling {
 public:
  Scaling(const Recipe& recipe, const NodeCounts& counts, int ranks_per_node)
      : before_(recipe),
        ranks_(std::int64_t{counts.nodes} * ranks_per_node),
        encoder_ranks_(encoder_ranks(recipe.topology)),
        new_encoder_ranks_(counts.encoder_nodes ? std::int64_t{*counts.encoder_nodes} * ranks_per_node
                                                : encoder_ranks_),
        scaled_{recipe} {}

  // Throws DoesNotFit.
  ScaledRecipe run() {
    if (ranks_ > kMaxWorldSize)
      throw DoesNotFit{fmt::format("the largest possible world has {} ranks, not {}", kMaxWorldSize, ranks_),
                       "--nodes"};
    TopologyConfig& topology = scaled_.recipe.topology;
    for (ModuleConfig& module : topology.modules) {
      if (has_own_ranks(module, topology))
        scale_encoder(module);
      else
        scale_shared(module);
      module.rank_offset = module.ranks = module.expt_dp = std::nullopt;
    }
    topology.world_size = std::nullopt;
    note("global_batch", before_.train.global_batch, scaled_.recipe.train.global_batch);
    if (const std::vector<Problem> problems = validate(scaled_.recipe); !problems.empty())
      throw DoesNotFit{problems.front().what, "--nodes"};
    return std::move(scaled_);
  }

 private:
  void scale_encoder(ModuleConfig& module) {
    if (new_encoder_ranks_ == encoder_ranks_) return;
    const std::int64_t replicas = new_encoder_ranks_ * module.dp;
    if (replicas % encoder_ranks_ != 0)
      throw DoesNotFit{fmt::format("{} instead of {} for encoders would give {} {:.4g} replicas instead of {}",
                                   new_encoder_ranks_, counted(encoder_ranks_, "rank"), module.name,
                                   static_cast<double>(replicas) / static_cast<double>(encoder_ranks_), module.dp),
                       "--encoder-nodes"};
    set_dp(module, replicas / encoder_ranks_);
  }

  // The language model, and encoders that share its ranks.
  void scale_shared(ModuleConfig& module) {
    const std::int64_t left = std::max<std::int64_t>(0, ranks_ - new_encoder_ranks_);
    const std::int64_t of_replica = std::int64_t{module.tp} * module.cp * module.pp;
    if (left == 0 || left % of_replica != 0)
      throw DoesNotFit{fmt::format("{} of {} are left for {}, whose replicas have {} each", left,
                                   counted(ranks_, "rank"), module.name, of_replica),
                       "--nodes"};
    const int before = module.dp;
    set_dp(module, left / of_replica);
    if (module.kind == "encoder") return;
    const std::int64_t batch = std::int64_t{before_.train.global_batch} / before * module.dp;
    if (batch > std::numeric_limits<int>::max())
      throw DoesNotFit{fmt::format("a global batch of {} is larger than braid can count", batch), "--nodes"};
    scaled_.recipe.train.global_batch = static_cast<int>(batch);
  }

  void set_dp(ModuleConfig& module, std::int64_t dp) {
    note(module.name + ".dp", module.dp, dp);
    module.dp = static_cast<int>(dp);
  }

  void note(const std::string& name, std::int64_t before, std::int64_t after) {
    if (before == after) return;
    scaled_.how += fmt::format("{}{} {} -> {}", scaled_.how.empty() ? "" : ", ", name, before, after);
  }

  const Recipe& before_;
  const std::int64_t ranks_, encoder_ranks_, new_encoder_ranks_;
  ScaledRecipe scaled_;
};

// The largest number up to `below` and the smallest from `above` that fit, both within 1 to `most`.
std::vector<int> nearest(std::int64_t below, std::int64_t above, int most, const std::function<bool(int)>& fits) {
  constexpr int kFarthest = 256;
  std::vector<int> found;
  const auto take_first = [&](std::int64_t from, int direction) {
    for (int distance = 0; distance < kFarthest; ++distance) {
      const std::int64_t count = from + direction * distance;
      if (count < 1 || count > most) return;
      if (!fits(static_cast<int>(count))) continue;
      found.push_back(static_cast<int>(count));
      return;
    }
  };
  take_first(std::min<std::int64_t>(below, most), -1);
  take_first(above, 1);
  return found;
}

// Suggests options near the given ones; each fits if it alone is changed or added.
std::string fix_of(const Recipe& recipe, const NodeCounts& wanted, int ranks_per_node) {
  const int most_nodes = kMaxWorldSize / ranks_per_node;
  const auto fits = [&](const NodeCounts& counts) {
    try {
      Scaling(recipe, counts, ranks_per_node).run();
      return true;
    } catch (const DoesNotFit&) {
      return false;
    }
  };
  std::vector<std::string> options;
  const std::int64_t wanted_nodes = wanted.nodes;
  for (const int nodes : nearest(wanted_nodes - 1, wanted_nodes + 1, most_nodes, [&](int n) {
         return fits({n, wanted.encoder_nodes});
       }))
    options.push_back(fmt::format("--nodes {}", nodes));
  // Without --encoder-nodes, the ranks of encoders may fill only a part of their last node.
  if (std::int64_t ranks = encoder_ranks(recipe.topology); ranks > 0) {
    if (wanted.encoder_nodes) ranks = std::int64_t{*wanted.encoder_nodes} * ranks_per_node;
    for (const int nodes : nearest((ranks - 1) / ranks_per_node, ranks / ranks_per_node + 1,
                                   std::min(wanted.nodes, most_nodes) - 1, [&](int n) {
                                     return fits({wanted.nodes, n});
                                   }))
      options.push_back(fmt::format("--encoder-nodes {}", nodes));
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
    return Scaling(recipe, counts, hardware.ranks_per_node).run();
  } catch (const DoesNotFit& reason) {
    throw ConfigError({fmt::format("the recipe cannot be scaled to {}: {}", counted(counts.nodes, "node"), reason.what),
                       reason.where,
                       is_host(hardware) ? "leave out --nodes, or change the modules, e.g. with --llm-tp"
                                         : fix_of(recipe, counts, hardware.ranks_per_node)});
  }
}

}  // namespace braid
