// braid launch local: the ranks of a recipe, or of a torchrun command, on the GPUs of this machine.
#include <CLI/CLI.hpp>

#include <memory>

#include "base/files.h"
#include "base/process.h"
#include "base/strings.h"
#include "cli/commands.h"
#include "cli/launch_commands.h"
#include "cli/tensor_commands.h"
#include "cluster/local/host_capacity.h"
#include "cluster/local/local_launcher.h"
#include "cluster/megatron/rank_command.h"
#include "plan/topology.h"
#include "run/recipe.h"

namespace braid {
namespace {

struct LaunchLocal {
  std::string recipe_path, log_dir;
  int ranks = 0;
  bool oversubscribe = false;
};

int gpus_here() {
  const auto list = output_of({"nvidia-smi", "-L"});
  int count = 0;
  if (list && list->exit_code == 0)
    for (const std::string& line : split(list->out, '\n')) count += line.rfind("GPU ", 0) == 0;
  return count;
}

// Like braid train, which also starts its ranks itself, but counts the GPUs first.
[[noreturn]] void launch_recipe(const LaunchLocal& launch, const std::vector<std::string>& overrides) {
  const RecipeCall call = read_recipe_call(launch.recipe_path, overrides);
  const Recipe& recipe = call.recipe;
  const Topology topology(recipe.topology, workload_of(recipe));
  const int gpus = recipe.dist.device == "cpu" ? 0 : gpus_here();
  if (launch.ranks && launch.ranks != topology.world_size())
    throw ConfigError({fmt::format("the recipe has {}, not {}", counted(topology.world_size(), "rank"), launch.ranks),
                       "--ranks", "leave it out, or change the module sizes"});
  if (gpus > 0 && topology.world_size() > gpus)
    fmt::print(stderr, "braid: warning: {} ranks share {} GPU{}, which is slow: NCCL needs one GPU per rank\n",
               topology.world_size(), gpus, gpus == 1 ? "" : "s");
  std::vector<std::string> command = {own_executable(), "train", reopenable(launch.recipe_path, call.source.text)};
  if (!launch.log_dir.empty()) command.push_back("--log-dir=" + launch.log_dir);
  if (launch.oversubscribe) command.push_back("--oversubscribe");
  command.insert(command.end(), overrides.begin(), overrides.end());
  replace_process(command);
}

// If a text sets torchrun's variables itself, the correct values are kept under other names.
RankCommand command_of_rank(const std::string& text) {
  std::string kept, restored;
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    kept += fmt::format("BRAID_{0}=${0} ", name);
    restored += fmt::format("{0}=\"$BRAID_{0}\" ", name);
  }
  RankCommand command = rank_command(text, restored);
  if (command.has_pipe) command.text = kPipesFail + command.text;
  if (sets_rank_variables(text)) command.text = kept + "\n" + command.text;
  return command;
}

int launch_words(const LaunchLocal& launch, const std::vector<std::string>& words) {
  const RankCommand command = command_of_rank(command_text(words));
  if (command.nodes.value_or(1) > 1)
    throw ConfigError({fmt::format("the command has --nnodes={}, but this is one machine", *command.nodes),
                       "the command", "leave --nnodes out, or use braid launch slurm"});
  int ranks = launch.ranks;
  if (!ranks) ranks = command.ranks_per_node.value_or(0);
  if (!ranks) ranks = gpus_here();
  if (!ranks)
    throw ConfigError({"the number of ranks is unknown: the command has no --nproc_per_node, and there is no GPU",
                       "--ranks", "give --ranks N"});
  if (launch.ranks && command.ranks_per_node.value_or(ranks) != ranks)
    throw ConfigError({fmt::format("--ranks {} contradicts --nproc_per_node={}", ranks, *command.ranks_per_node),
                       "--ranks", "give one of them"});
  if (!launch.oversubscribe) refuse_oversubscription(ranks);
  return launch_local({.ranks = ranks, .command = {"bash", "-c", command.text}, .log_dir = launch.log_dir});
}

}  // namespace

void add_launch_local_command(CLI::App& launch, const std::vector<std::string>& command_line, int& exit_code) {
  auto options = std::make_shared<LaunchLocal>();
  CLI::App* command = launch.add_subcommand(kLaunchLocal.name, kLaunchLocal.help);
  command->add_option("recipe", options->recipe_path, "recipe file; its keys may follow, as for braid train");
  command->add_option("--ranks", options->ranks, "ranks (default: the recipe's, --nproc_per_node, or the GPUs here)")
      ->check(CLI::PositiveNumber);
  command->add_option("--log-dir", options->log_dir, "also add what rank N prints to rank_N.log in this folder");
  command->add_flag("--oversubscribe", options->oversubscribe, kOversubscribeHelp);
  command->allow_extras();
  command->footer(
      "A torchrun command is run without torchrun: each rank gets torchrun's variables, and a rank that fails "
      "ends the run with its error.\n\n"
      "Example: braid launch local -- torchrun --nproc_per_node=8 train.py");
  command->callback([options, command, &command_line, &exit_code] {
    const std::vector<std::string> words = words_behind_dashes(command_line);
    const auto overrides = parse_overrides(command->remaining(), {"--ranks", "--log-dir", "--oversubscribe"});
    if (!words.empty() && !overrides.empty())
      throw ConfigError({fmt::format("--{} is a recipe key, but there is no recipe", overrides[0].path), "command line",
                         "give the command's options after --"});
    if (words.empty() == options->recipe_path.empty())
      throw ConfigError(
          {words.empty() ? "there is neither a recipe nor a command" : "both a recipe and a command were given",
           "command line", "braid launch local RECIPE ..., or braid launch local -- COMMAND"});
    if (words.empty()) launch_recipe(*options, command->remaining());
    exit_code = launch_words(*options, words);
  });
}

}  // namespace braid
