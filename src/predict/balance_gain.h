// The gain of `loader.balance: cost`: the same drawn steps, predicted with and without it.
#pragma once

#include <optional>

#include "predict/simulate.h"

namespace braid {

struct BalanceGain {
  double without_s = 0, with_s = 0;  // seconds of an iteration
  int replicas = 1;                  // language replicas that exchange samples

  double share() const { return 1 - with_s / without_s; }  // of `without_s` that is saved
};

// `own` is the simulation of the unchanged recipe. Returns nothing if steps are not drawn (all samples are then equal),
// if the recipe must not move samples, or with more than 1024 language replicas, since a second simulation is needed.
std::optional<BalanceGain> balance_gain(const Recipe& recipe, const HardwareProfile& hardware,
                                        const SimulateOptions& options, const Simulation& own);

}  // namespace braid
