#include "cli/plan_machine.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "base/error.h"
#include "predict/scale_nodes.h"

namespace braid {

void add_hardware_option(CLI::App& command, MachineCall& call) {
  command.add_option("--hardware", call.hardware,
                     fmt::format("{}, or a file that braid plan calibrate wrote; default: {}",
                                 fmt::join(hardware_names(), ", "), call.hardware.empty() ? "none" : call.hardware));
}

void add_nodes_options(CLI::App& command, MachineCall& call) {
  command
      .add_option("--nodes", call.nodes,
                  "on this many nodes: with more or fewer replicas of the language model, and the global batch in "
                  "proportion; a CPU profile has one node")
      ->check(CLI::PositiveNumber);
  command
      .add_option("--encoder-nodes", call.encoder_nodes,
                  "with --nodes: this many of them for the encoders; default: as in the recipe")
      ->check(CLI::PositiveNumber);
}

std::string scale_recipe(Recipe& recipe, const MachineCall& call, const HardwareProfile& hardware) {
  if (!call.nodes && call.encoder_nodes)
    throw ConfigError(
        {"--encoder-nodes was given without --nodes", "command line", "also say how many nodes there are"});
  if (!call.nodes) return "";
  ScaledRecipe scaled = scale_to_nodes(recipe, {*call.nodes, call.encoder_nodes}, hardware);
  recipe = std::move(scaled.recipe);
  return std::move(scaled.how);
}

std::string described(const DeviceMemory& memory, const HardwareProfile& hardware) {
  const bool shared = is_host(hardware);
  const double needed = 1e-9 * static_cast<double>(memory.needed), has = 1e-9 * static_cast<double>(memory.capacity);
  if (memory.fits())
    return fmt::format("{:.2f} of {:.2f} GB needed {}", needed, has, shared ? "by all ranks" : "on the fullest GPU");
  return fmt::format("does not fit: {} {:.2f} GB, but {} has {:.2f} GB",
                     shared ? "all ranks need" : "the fullest GPU needs", needed, shared ? "the host" : "it", has);
}

nlohmann::ordered_json to_json(const DeviceMemory& memory) {
  return {{"needed_bytes", memory.needed},
          {"device_bytes", memory.with_slack},
          {"capacity_bytes", memory.capacity},
          {"fits", memory.fits()}};
}

}  // namespace braid
