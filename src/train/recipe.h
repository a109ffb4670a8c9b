// A run as one value: what a YAML file says, with every default filled in.
#pragma once

#include <string>
#include <vector>

#include "dist/dist_config.h"
#include "models/demo_net_config.h"
#include "plan/topology.h"

namespace braid {

struct TrainConfig {
  int iterations = 100;
  int micro_batch = 4;    // samples per language replica and microbatch
  int global_batch = 32;  // samples per step
  double lr = 0.05;
  int seed = 1234;
  int log_interval = 10;
};

struct Recipe {
  TopologyConfig topology{};
  DemoNetConfig model{};
  TrainConfig train{};
  DistConfig dist{};
};

void describe(Fields& fields, TrainConfig& config);
void describe(Fields& fields, Recipe& recipe);

Workload workload_of(const Recipe& recipe);

// Reads and validates; every problem of the file and of the topology is in one ConfigError.
Recipe load_recipe(const std::string& path, const std::vector<ConfigOverride>& overrides = {});
Recipe parse_recipe(const std::string& yaml, const std::vector<ConfigOverride>& overrides = {});

// The resolved recipe as YAML; parsing it gives the same recipe again.
std::string to_yaml(Recipe recipe);

}  // namespace braid
