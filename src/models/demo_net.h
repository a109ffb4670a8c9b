// A small network over a real topology: each encoder module and the language module are two-layer
// perceptrons, split over tp and replicated over dp, that learn a fixed random function together. Encoder
// outputs cross to the language grid row by row, gradients come back the same way.
//
// Weights and samples depend on the seed and on global indices only, so every layout trains the same network
// on the same data.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "models/demo_net_config.h"
#include "plan/topology.h"

namespace braid {

class Groups;
class World;

// Throws ConfigError for what the demo network does not use: cp, pp, experts, widths that tp does not divide.
void check_demo_topology(const Topology& topology, const DemoNetConfig& config);

struct StepResult {
  double loss = 0;       // mean over the global batch, before the update
  double grad_norm = 0;  // over all modules
};

class DemoNet {
 public:
  DemoNet(const DemoNetConfig& config, const Topology& topology, World& world, const Groups& groups, int seed);
  ~DemoNet();

  // One step of gradient descent on `global_batch` samples, the first of which has index `first_sample`.
  StepResult step(std::int64_t first_sample, int micro_batch, int global_batch, double lr);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace braid
