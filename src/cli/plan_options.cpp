#include "cli/plan_options.h"

#include <fmt/format.h>

#include <memory>

#include "base/error.h"
#include "base/strings.h"
#include "predict/layout.h"
#include "predict/step_draws.h"

namespace braid {
namespace {

// Beyond this, drawing each replica's samples and playing each replica takes too long.
constexpr int kMaxDrawnReplicas = 4096;

// More steps take long and hardly change the mean and the spread.
constexpr int kMaxSteps = 1000;

// Empty: sizes are drawn.
std::string why_full(const Recipe& recipe, const PlanSizesCall& call) {
  int replicas = 0;
  for (const ModuleConfig& module : recipe.topology.modules) replicas += module.dp;
  if (call.full) return "--full";
  if (!is_mock(recipe.data) && call.stats_path.empty()) return "no --stats of the data set were given";
  return replicas > kMaxDrawnReplicas ? "there are too many replicas to draw samples for each" : "";
}

void check(const PlanSizesCall& call) {
  if (call.steps && *call.steps > kMaxSteps)
    throw ConfigError(
        {fmt::format("--steps {} is too many to draw", *call.steps), "command line",
         fmt::format("use at most {}, or leave it out for {}", kMaxSteps, counted(call.default_steps, "step"))});
  std::vector<std::string> unused;
  if (!call.stats_path.empty()) unused.emplace_back("--stats");
  if (call.steps) unused.emplace_back("--steps");
  if (!call.full || unused.empty()) return;
  const std::string options = joined(unused, " and ");
  throw ConfigError({fmt::format("--full draws no steps, so it cannot be combined with {}", options), "command line",
                     fmt::format("leave out --full to draw steps, or leave out {} for full sequences", options)});
}

}  // namespace

Option recipe_option(std::string& path) {
  return {"recipe", &path, "recipe file, e.g. recipes/tiny-vlm.yaml", kRequired};
}

Option hardware_option(MachineCall& call) {
  return {"--hardware", &call.hardware,
          fmt::format("{}, or a file that braid plan calibrate wrote; default: {}", fmt::join(hardware_names(), ", "),
                      call.hardware.empty() ? "none" : call.hardware)};
}

Option nodes_option(MachineCall& call) {
  return {"--nodes", &call.nodes,
          "on this many nodes: with more or fewer replicas of the language model, and the global batch in proportion; "
          "a CPU profile has one node",
          kPositive};
}

Option encoder_nodes_option(MachineCall& call) {
  return {"--encoder-nodes", &call.encoder_nodes,
          "with --nodes: this many of them for the encoders; default: as in the recipe", kPositive};
}

Option stats_option(PlanSizesCall& call) {
  return {"--stats", &call.stats_path,
          "sizes of the data set's samples, of braid data inspect --stats; each step draws from them"};
}

Option steps_option(PlanSizesCall& call, const std::string& default_text) {
  return {"--steps", &call.steps, "how many steps to draw, up to 1000; default: " + default_text, kPositive};
}

Option full_option(PlanSizesCall& call) {
  return {"--full", &call.full,
          "draw nothing: full sequences, with as many and as large media as mock samples may have; not with --stats or "
          "--steps"};
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

PlanSizes plan_sizes(const Recipe& recipe, const PlanSizesCall& call) {
  check(call);
  std::shared_ptr<const DataStats> stats;
  if (!call.stats_path.empty()) stats = std::make_shared<DataStats>(read_data_stats(call.stats_path));
  if (const std::string why = why_full(recipe, call); !why.empty())
    return {{.steps = 1},
            fmt::format("full sequences with as many and as large media as mock samples may have, since {}{}", why,
                        call.steps || stats ? ", so no steps are drawn" : "")};
  const int steps = call.steps.value_or(call.default_steps);
  return {{.steps = steps,
           .draw = [stats](const Recipe& r, const Topology& topology,
                           int step) { return draw_step(r, topology, stats.get(), static_cast<std::uint64_t>(step)); },
           .reading = stats ? stats->reading : std::nullopt},
          fmt::format("drawn from {}, {}", stats ? call.stats_path : "those of mock samples", counted(steps, "step"))};
}

}  // namespace braid
