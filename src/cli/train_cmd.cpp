#include <CLI/CLI.hpp>

#include <cstdio>
#include <memory>

#include "base/strings.h"
#include "ckpt/save_lock.h"
#include "cli/commands.h"
#include "dist/run_as_rank.h"
#include "launch/local_launcher.h"
#include "plan/show.h"
#include "train/recipe.h"
#include "train/save_folder.h"
#include "train/trainer.h"

namespace braid {
namespace {

struct TrainOptions {
  std::string recipe_path, log_dir;
  bool print_recipe = false;
};

void check_world(const WorldSpec& spec, const Topology& topology) {
  if (spec.size == topology.world_size()) return;
  throw ConfigError(
      {fmt::format("the recipe's topology has {} ranks, but {} were started", topology.world_size(), spec.size),
       "topology", fmt::format("start {} ranks, or change the module sizes", topology.world_size())});
}

// Where Slurm runs us. It counts from 1 how often a job was queued again, and says nothing the first time.
JobIdentity job_from(const Env& env) {
  return {.id = env("SLURM_JOB_ID").value_or(""),
          .restarts = parse_int64(env("SLURM_RESTART_COUNT").value_or("0")).value_or(0)};
}

// Before any rank starts; each refusal comes again in the rank that saves, for launchers that are not ours.
void check_save(const CheckpointConfig& config, const JobIdentity& job) {
  if (config.save.empty()) return;
  const SaveLock lock(config.save, {.job = job, .say = [](const std::string& text) {
                                      fmt::print("braid: {}\n", text);
                                      std::fflush(stdout);
                                    }});
  check_save_folder(config);
}

int train_command(const TrainOptions& options, const std::vector<ConfigOverride>& overrides,
                  const std::vector<std::string>& command_line) {
  const Recipe recipe = load_recipe(options.recipe_path, overrides);
  if (options.print_recipe) {
    fmt::print("{}", to_yaml(recipe));
    return 0;
  }
  const Topology topology(recipe.topology, workload_of(recipe));

  const auto spec = world_spec_from(process_env());
  const JobIdentity job = job_from(process_env());
  if (!spec) check_save(recipe.checkpoint, job);
  const bool first = !spec || (spec->rank == 0 && spec->launcher != Launcher::Local);
  if (first) {
    fmt::print("{}\nbraid: {} ranks: {}\n", to_yaml(recipe), topology.world_size(), topology_line(topology));
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
  const RunContext context = {.stop = stop, .launcher_listens = spec->launcher == Launcher::Local, .job = job};
  run_as_rank(*spec, recipe.dist, topology.places(), [&](World& world) { train(recipe, topology, world, context); });
  return 0;
}

}  // namespace

void add_train_command(CLI::App& app, const std::vector<std::string>& command_line, int& exit_code) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* command = app.add_subcommand("train", "Train what a recipe describes");
  command->add_option("recipe", options->recipe_path, "recipe file, e.g. recipes/tiny-vlm.yaml")->required();
  command->add_option("--log-dir", options->log_dir, "also write what rank N prints to rank_N.log in this folder");
  command->add_flag("--print-recipe", options->print_recipe, "print the resolved recipe and stop");
  command->allow_extras();
  command->footer(
      "Started alone, it starts the recipe's ranks on this host; under torchrun --no-python or srun each\n"
      "process becomes the rank it was started as.\n\n" +
      overrides_help());
  command->callback([options, command, &command_line, &exit_code] {
    exit_code = train_command(*options, parse_overrides(command->remaining()), command_line);
  });
}

}  // namespace braid
