// braid plan: look at what a recipe asks for, without running it.
#include <CLI/CLI.hpp>

#include <memory>
#include <optional>

#include "cli/commands.h"
#include "plan/show.h"
#include "train/recipe.h"

namespace braid {
namespace {

struct ShowOptions {
  std::string recipe_path;
  std::optional<int> global_rank;
  bool json = false;
};

void show_plan(const ShowOptions& options, const std::vector<ConfigOverride>& overrides) {
  if (options.global_rank && options.json)
    throw ConfigError({"--rank and --json were both given", "command line", "use one of them; --json has every rank"});
  const Recipe recipe = load_recipe(options.recipe_path, overrides);
  const Topology topology(recipe.topology, workload_of(recipe));
  if (options.json)
    fmt::print("{}\n", topology_json(topology));
  else if (options.global_rank)
    fmt::print("{}", show_rank(topology, *options.global_rank));
  else
    fmt::print("{}", show_topology(topology));
}

}  // namespace

void add_plan_command(CLI::App& app) {
  CLI::App* plan = app.add_subcommand("plan", "Look at what a recipe asks for, without running it");
  plan->require_subcommand(1);
  auto options = std::make_shared<ShowOptions>();
  CLI::App* show = plan->add_subcommand("show", "Print modules, the coordinates of every rank and all groups");
  show->add_option("recipe", options->recipe_path, "recipe file, e.g. recipes/demo.yaml")->required();
  show->add_option("--rank", options->global_rank, "show this global rank only, with all its groups");
  show->add_flag("--json", options->json, "print JSON, for programs");
  show->allow_extras();
  show->footer(overrides_help());
  show->callback([options, show] { show_plan(*options, parse_overrides(show->remaining())); });
}

}  // namespace braid
