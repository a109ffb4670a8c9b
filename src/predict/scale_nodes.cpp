#include "predict/scale_nodes.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "base/error.h"
#include "base/strings.h"
#include "plan/topology_config.h"
#include "predict/hardware.h"
#include "predict/layout.h"

namespace braid {
namespace {

// The data parallelism of an encoder on ranks of its own. Throws a Problem, as the next functions do.
std::int64_t encoder_dp(const ModuleConfig& module, std::int64_t ranks, std::int64_t new_ranks) {
  if (ranks == new_ranks) return module.dp;
  const std::int64_t replicas = new_ranks * module.dp;
  if (replicas % ranks != 0)
    throw Problem{fmt::format("{} instead of {} for encoders would give {} {:.4g} replicas instead of {}", new_ranks,
                              counted(ranks, "rank"), module.name, static_cast<double>(replicas) / ranks, module.dp),
                  "--encoder-nodes", ""};
  return replicas / ranks;
}

// That of the language model and of encoders that share its ranks: `left` of all `ranks`.
std::int64_t shared_dp(const ModuleConfig& module, std::int64_t left, std::int64_t ranks) {
  const std::int64_t of_replica = std::int64_t{module.tp} * module.cp * module.pp;
  if (left == 0 || left % of_replica != 0)
    throw Problem{fmt::format("{} of {} are left for {}, whose replicas have {} each", left, counted(ranks, "rank"),
                              module.name, of_replica),
                  "--nodes", ""};
  return left / of_replica;
}

ScaledRecipe scaled(const Recipe& recipe, const NodeCounts& counts, int ranks_per_node) {
  ScaledRecipe result = {recipe};
  TopologyConfig& topology = result.recipe.topology;
  int& global_batch = result.recipe.train.global_batch;
  const auto note = [&](const std::string& name, std::int64_t before, std::int64_t after) {
    if (before != after)
      result.how += fmt::format("{}{} {} -> {}", result.how.empty() ? "" : ", ", name, before, after);
  };
  const std::int64_t ranks = std::int64_t{counts.nodes} * ranks_per_node, of_encoders = encoder_ranks(topology),
                     new_of_encoders =
                         counts.encoder_nodes ? std::int64_t{*counts.encoder_nodes} * ranks_per_node : of_encoders;
  if (ranks > kMaxWorldSize)
    throw Problem{fmt::format("the largest possible world has {} ranks, not {}", kMaxWorldSize, ranks), "--nodes", ""};
  for (ModuleConfig& module : topology.modules) {
    const int before = module.dp;
    module.dp = static_cast<int>(has_own_ranks(module, topology)
                                     ? encoder_dp(module, of_encoders, new_of_encoders)
                                     : shared_dp(module, std::max<std::int64_t>(0, ranks - new_of_encoders), ranks));
    note(module.name + ".dp", before, module.dp);
    module.rank_offset = module.ranks = module.expt_dp = std::nullopt;
    if (module.kind == "encoder") continue;
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
      scaled(recipe, counts, ranks_per_node);
      return true;
    } catch (const Problem&) {
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
    return scaled(recipe, counts, hardware.ranks_per_node);
  } catch (const Problem& reason) {
    throw ConfigError({fmt::format("the recipe cannot be scaled to {}: {}", counted(counts.nodes, "node"), reason.what),
                       reason.where,
                       is_host(hardware) ? "leave out --nodes, or change the modules, e.g. with --llm-tp"
                                         : fix_of(recipe, counts, hardware.ranks_per_node)});
  }
}

}  // namespace braid
