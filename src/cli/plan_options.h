// What the commands of braid plan share: on which machine a recipe is planned, and which sizes its steps have.
#pragma once

#include "cli/command.h"
#include "predict/memory.h"
#include "predict/simulate.h"
#include "run/recipe.h"

namespace braid {

struct PlanCall {
  std::string recipe_path{}, hardware{};  // hardware may be empty: none
  std::optional<int> nodes{}, encoder_nodes{};
  std::string stats_path{};    // of the data set; empty: none
  std::optional<int> steps{};  // to draw
  int default_steps = 8;
  bool full = false;  // draw nothing
  bool json = false;
};
// "recipe", "--hardware", "--nodes", "--encoder-nodes", "--stats", "--steps" (`otherwise`: its default in words),
// "--full".
Option plan_option(const std::string& name, PlanCall& call, const std::string& otherwise = "");

// Changes the recipe to the nodes of the call. Says how, if there is something to say.
std::string scale_recipe(Recipe& recipe, const PlanCall& call, const HardwareProfile& hardware);

// "71.31 of 80.00 GB needed on the fullest GPU", or that this is too much.
std::string described(const DeviceMemory& memory, const HardwareProfile& hardware);

struct PlanSizes {
  SimulateOptions options{};
  std::string words{};
};
// ConfigError if options contradict each other.
PlanSizes plan_sizes(const Recipe& recipe, const PlanCall& call);

}  // namespace braid
