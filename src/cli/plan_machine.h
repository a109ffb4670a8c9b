// On which machine a recipe is planned, from the options of a command of braid plan.
#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string>

#include "predict/needed_memory.h"
#include "run/recipe.h"

namespace CLI {
class App;
}

namespace braid {

struct MachineCall {
  std::string hardware{};  // empty: none
  std::optional<int> nodes{}, encoder_nodes{};
};
void add_hardware_option(CLI::App& command, MachineCall& call);  // the default is what `call` has
void add_nodes_options(CLI::App& command, MachineCall& call);

// Changes the recipe to the nodes of the call. Says how, if there is something to say.
std::string scale_recipe(Recipe& recipe, const MachineCall& call, const HardwareProfile& hardware);

// "71.31 of 80.00 GB needed on the fullest GPU", or that this is too much.
std::string described(const DeviceMemory& memory, const HardwareProfile& hardware);
nlohmann::ordered_json to_json(const DeviceMemory& memory);

}  // namespace braid
