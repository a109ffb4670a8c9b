// braid plan: shows the layout, schedule and communication of a recipe, without running it.
#include <CLI/CLI.hpp>

#include <memory>
#include <optional>

#include "base/strings.h"
#include "cli/commands.h"
#include "cli/plan_commands.h"
#include "cli/tensor_commands.h"
#include "plan/frozen.h"
#include "plan/schedule.h"
#include "plan/show.h"
#include "plan/timeline.h"
#include "run/output_files.h"
#include "run/step_sizes.h"

namespace braid {
namespace {

struct ShowOptions {
  std::string recipe_path;
  std::optional<int> global_rank;
  bool json = false;
};

void show_plan(const ShowOptions& options, const std::vector<std::string>& flags) {
  if (options.global_rank && options.json)
    throw ConfigError({"--rank and --json were both given", "command line", "use one of them; --json has every rank"});
  const Recipe recipe = read_recipe_call(options.recipe_path, flags, RecipeChecks::TopologyOnly).recipe;
  const Topology topology(recipe.topology, workload_of(recipe));
  if (options.json)
    fmt::print("{}\n", topology_json(topology));
  else if (options.global_rank)
    fmt::print("{}", show_rank(topology, *options.global_rank));
  else
    fmt::print("{}", show_topology(topology));
}

struct ScheduleCommand {
  std::string recipe_path, svg_path;
};

// The share of the step in which a pipeline stage computes, and how many microbatches it holds at most.
std::string show_stages(const Schedule& schedule, const Topology& topology, const Play& timeline,
                        const ScheduleOptions& options) {
  std::vector<std::vector<std::string>> rows;
  for (std::size_t m = 0; m < topology.modules().size(); ++m) {
    const Module& module = topology.modules()[m];
    for (int index = 0; index < stage_count(module); ++index) {
      const Stage stage = {static_cast<int>(m), index};
      const auto rank = static_cast<std::size_t>(ranks_of(topology, stage).first);
      double busy = 0;
      for (std::size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
        const Op& op = schedule.ranks[rank][i];
        const OpSpan& span = timeline.ranks[rank][i];
        if (op.computes() && op.stage == stage) busy += span.end - span.begin;
      }
      rows.push_back({module.name, std::to_string(index), fmt::format("{:.0f} %", 100 * busy / timeline.end),
                      std::to_string(max_in_flight(topology, options, stage))});
    }
  }
  return format_table({"module", "stage", "busy", "holds at most"}, rows);
}

void plan_schedule(const ScheduleCommand& command, const std::vector<std::string>& flags) {
  const Recipe recipe = read_recipe_call(command.recipe_path, flags).recipe;
  if (command.svg_path != "-")
    check_outputs({{"--svg", command.svg_path, {".svg"}}}, {.path = command.recipe_path, .data = recipe.data.set});
  const Topology topology(recipe.topology, workload_of(recipe));
  const ScheduleOptions options = schedule_options_of(recipe, topology);
  const Schedule schedule = verified_schedule(topology, options);
  const std::vector<StageCosts> costs = stage_costs(topology, frozen_sets(recipe));
  const Play timeline = make_timeline(schedule, topology, costs);
  const std::string svg = command.svg_path.empty() ? "" : draw_svg(schedule, topology, timeline, costs);
  if (command.svg_path == "-") return fmt::print("{}", svg);
  fmt::print("{}, {}: every send has its receive, and no rank deadlocks\n\n{}", counted(topology.world_size(), "rank"),
             counted(options.microbatches, "microbatch"), show_stages(schedule, topology, timeline, options));
  if (command.svg_path.empty()) return;
  write_output(command.svg_path, svg);
  fmt::print("\ndrawn in {}\n", command.svg_path);
}

void add_schedule_command(CLI::App& plan) {
  auto command = std::make_shared<ScheduleCommand>();
  CLI::App* schedule = plan.add_subcommand("schedule", "Check and draw what every rank does in one step");
  schedule->add_option("recipe", command->recipe_path, "recipe file, e.g. recipes/tiny-vlm.yaml")->required();
  schedule->add_option("--svg", command->svg_path, "draw it to this file; -: standard output, without the text");
  schedule->allow_extras();
  schedule->footer(
      "A backward is drawn twice as long as a forward. It is drawn as long as a forward if it computes no weight "
      "gradients, and a quarter as long if only the projector trains. Communication takes no time.\n\n" +
      short_overrides_help());
  schedule->callback([command, schedule] { plan_schedule(*command, schedule->remaining()); });
}

}  // namespace

void add_plan_command(CLI::App& app) {
  CLI::App* plan =
      app.add_subcommand("plan", "Show the layout, schedule and communication of a recipe, without running it");
  plan->require_subcommand(1);
  auto options = std::make_shared<ShowOptions>();
  CLI::App* show = plan->add_subcommand("show", "Print modules, the coordinates of every rank and all process groups");
  show->add_option("recipe", options->recipe_path, "recipe file, e.g. recipes/tiny-vlm.yaml")->required();
  show->add_option("--rank", options->global_rank, "show this global rank only, with all its groups");
  show->add_flag("--json", options->json, "print JSON, for programs");
  show->allow_extras();
  show->footer(short_overrides_help());
  add_schedule_command(*plan);
  add_plan_bytes_command(*plan);
  plan->add_subcommand(kPlanCalibrate.name, kPlanCalibrate.help);  // in the list only: braid-tensors has it
  add_plan_memory_command(*plan);
  add_plan_search_command(*plan);
  add_plan_simulate_command(*plan);
  show->callback([options, show] { show_plan(*options, show->remaining()); });
}

}  // namespace braid
