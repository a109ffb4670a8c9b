#include <CLI/CLI.hpp>

#include <memory>

#include "ckpt/checkpoint_folder.h"
#include "cli/commands.h"
#include "cli/from_megatron.h"
#include "cli/megatron_flags.h"
#include "cli/run_start.h"
#include "dist/run_as_rank.h"
#include "launch/local_launcher.h"
#include "train/recipe.h"
#include "train/trainer.h"

namespace braid {
namespace {

struct TrainOptions {
  std::string recipe_path, log_dir, from_megatron;
  bool print_recipe = false, megatron_flags = false;
};

void check_world(const WorldSpec& spec, const Topology& topology) {
  if (spec.size == topology.world_size()) return;
  throw ConfigError(
      {fmt::format("the recipe's topology has {} ranks, but {} were started", topology.world_size(), spec.size),
       "topology", fmt::format("start {} ranks, or change the module sizes", topology.world_size())});
}

int convert(const TrainOptions& options, const std::vector<ConfigOverride>& overrides) {
  if (!options.recipe_path.empty())
    throw ConfigError(
        {fmt::format("--from-megatron makes a recipe, but there is one already: '{}'", options.recipe_path),
         "command line", "leave one of them out; quote the words behind --from-megatron as one"});
  if (!options.print_recipe)
    throw ConfigError({"--from-megatron makes a recipe, which should be looked at before it is run", "command line",
                       "add --print-recipe > recipe.yaml, then braid train recipe.yaml"});
  fmt::print("{}", recipe_from_megatron(options.from_megatron, overrides));
  return 0;
}

int train_command(const TrainOptions& options, const std::vector<std::string>& arguments,
                  const std::vector<std::string>& command_line) {
  if (options.megatron_flags) {
    fmt::print("{}", megatron_flags_tables());
    return 0;
  }
  const std::vector<ConfigOverride> overrides = parse_overrides(arguments);
  if (!options.from_megatron.empty()) return convert(options, overrides);
  if (options.recipe_path.empty())
    throw ConfigError(
        {"no recipe is given", "command line", "give one, e.g. recipes/tiny-vlm.yaml; see `braid train --help`"});
  const Recipe recipe = load_recipe(options.recipe_path, overrides);
  if (options.print_recipe) {
    fmt::print("{}", to_yaml(recipe));
    return 0;
  }
  const Topology topology(recipe.topology, workload_of(recipe));

  const auto spec = world_spec_from(process_env());
  if (!spec && !recipe.checkpoint.save.empty()) prepare_root(recipe.checkpoint.save);
  const bool first = !spec || (spec->rank == 0 && spec->launcher != Launcher::Local);
  if (first) {
    if (!options.log_dir.empty()) write_recipe(recipe, options.log_dir);
    if (const std::string note = already_so_note(arguments); !note.empty())
      fmt::print(stderr, "braid: these flags change nothing, since it is so anyway:\n{}", note);
    fmt::print("{}", run_start_text(recipe, topology, options.log_dir));
    std::fflush(stdout);
  }
  if (!spec)
    return launch_local({.ranks = topology.world_size(),
                         .command = command_line,
                         .log_dir = options.log_dir,
                         .places = topology.places(),
                         .stop_grace = kLongStopGrace});
  const StopRequest stop;
  check_world(*spec, topology);
  const RunContext context = {.stop = stop, .launcher_listens = spec->launcher == Launcher::Local};
  run_as_rank(*spec, recipe.dist, topology.places(), [&](World& world) { train(recipe, topology, world, context); });
  return 0;
}

}  // namespace

void add_train_command(CLI::App& app, const std::vector<std::string>& command_line, int& exit_code) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* command = app.add_subcommand("train", "Train what a recipe describes");
  command->add_option("recipe", options->recipe_path, "recipe file, e.g. recipes/tiny-vlm.yaml");
  command->add_option("--log-dir", options->log_dir,
                      "folder for logs: rank_N.log has what rank N prints, recipe.yaml the whole recipe");
  command->add_flag("--print-recipe", options->print_recipe,
                    "print the whole recipe, every default filled in, and stop");
  command->add_option(kFromMegatron, options->from_megatron,
                      "flags of Megatron-LM as one word, in quotes; with --print-recipe: the recipe for them");
  command->add_flag("--megatron-flags", options->megatron_flags,
                    "print what becomes of each flag of Megatron-LM, and stop");
  command->allow_extras();
  command->footer([] {
    return "Started alone, it starts the recipe's ranks on this host; under torchrun --no-python or srun each\n"
           "process becomes the rank it was started as.\n\n" +
           overrides_help();
  });
  command->callback([options, command, &command_line, &exit_code] {
    exit_code = train_command(*options, command->remaining(), command_line);
  });
}

}  // namespace braid
