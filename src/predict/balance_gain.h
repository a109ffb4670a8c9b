// What loader.balance: cost gains: the same drawn steps, predicted with and without it.
#pragma once

#include <optional>

#include "predict/simulate.h"

namespace braid {

struct BalanceGain {
  double without_s = 0, with_s = 0;  // seconds of an iteration
  int replicas = 1;                  // language replicas that exchange samples

  double share() const { return 1 - with_s / without_s; }  // of the time without it
};

// `own`: the simulation of the recipe as it is. None if steps are not drawn, so that all samples are equal; if the
// recipe must not move samples; or with more than 1024 language replicas, since it takes a second simulation.
std::optional<BalanceGain> balance_gain(const Recipe& recipe, const HardwareProfile& hardware,
                                        const SimulateOptions& options, const Simulation& own);

}  // namespace braid
