// Options that the commands of braid plan share: on which machine a recipe is planned, and which sizes its steps have.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <string>

#include "cli/command.h"
#include "predict/memory.h"
#include "predict/simulate.h"
#include "run/recipe.h"

namespace braid {

Option recipe_option(std::string& path);

struct MachineCall {
  std::string hardware{};  // empty: none
  std::optional<int> nodes{}, encoder_nodes{};
};
Option hardware_option(MachineCall& call);  // the default is what `call` has
Option nodes_option(MachineCall& call);
Option encoder_nodes_option(MachineCall& call);

// Changes the recipe to the nodes of the call. Says how, if there is something to say.
std::string scale_recipe(Recipe& recipe, const MachineCall& call, const HardwareProfile& hardware);

// "71.31 of 80.00 GB needed on the fullest GPU", or that this is too much.
std::string described(const DeviceMemory& memory, const HardwareProfile& hardware);
nlohmann::ordered_json to_json(const DeviceMemory& memory);

struct PlanSizesCall {
  std::string stats_path{};    // of the data set; empty: none
  std::optional<int> steps{};  // to draw
  bool full = false;           // draw nothing
  int default_steps = 8;
};
Option stats_option(PlanSizesCall& call);
Option steps_option(PlanSizesCall& call, const std::string& default_text);
Option full_option(PlanSizesCall& call);

struct PlanSizes {
  SimulateOptions options{};
  std::string words{};
};
// ConfigError if options contradict each other.
PlanSizes plan_sizes(const Recipe& recipe, const PlanSizesCall& call);

}  // namespace braid
