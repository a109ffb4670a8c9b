#include "predict/balance_gain.h"

#include "data/batches/balance.h"
#include "run/lane_options.h"

namespace braid {
namespace {

// With more of them, a second simulation of unequal replicas takes minutes.
constexpr int kMaxReplicas = 1024;

// Whether the recipe may have loader.balance: cost, in a world that is not too large.
bool can_compare(const Recipe& recipe, const Topology& topology) {
  const int replicas = topology.language().dense.size_of("dp");
  return replicas <= kMaxReplicas && !recipe.train.correct_partial_participation &&
         replicas % recipe.loader.balance_replicas.value_or(1) == 0;
}

}  // namespace

std::optional<BalanceGain> balance_gain(const Recipe& recipe, const HardwareProfile& hardware,
                                        const SimulateOptions& options, const Simulation& own) {
  if (!options.draw || options.equal_replicas) return std::nullopt;
  const Topology topology = reduce_world(recipe, /*equal_replicas=*/false).topology;
  if (!can_compare(recipe, topology)) return std::nullopt;
  Recipe other = recipe;
  const bool balances = recipe.loader.balance == "cost";
  other.loader.balance = balances ? "none" : "cost";
  const double other_s = simulate(other, hardware, options).iteration_s;
  return BalanceGain{.without_s = balances ? other_s : own.iteration_s,
                     .with_s = balances ? own.iteration_s : other_s,
                     .replicas = sample_balance(balances ? recipe : other, topology)->replicas()};
}

}  // namespace braid
