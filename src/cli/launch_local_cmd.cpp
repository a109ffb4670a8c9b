// braid launch local and run: the ranks of a recipe, of a torchrun command, or of any program, on this machine.
#include <memory>

#include "base/files.h"
#include "base/process.h"
#include "base/strings.h"
#include "cli/commands.h"
#include "cli/start.h"
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
    fmt::print(stderr, "braid: warning: {} ranks share {}, which is slow: NCCL needs one GPU per rank\n",
               topology.world_size(), counted(gpus, "GPU"));
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

int launch_here(const LaunchLocal& launch, const Call& call) {
  const std::vector<std::string> words = words_behind_dashes(call.command_line);
  const auto overrides = parse_overrides(call.arguments, call.option_names);
  if (!words.empty() && !overrides.empty())
    throw ConfigError({fmt::format("--{} is a recipe key, but there is no recipe", overrides[0].path), "command line",
                       "give the command's options after --"});
  if (words.empty() == launch.recipe_path.empty())
    throw ConfigError(
        {words.empty() ? "there is neither a recipe nor a command" : "both a recipe and a command were given",
         "command line", "braid launch local RECIPE ..., or braid launch local -- COMMAND"});
  if (words.empty()) launch_recipe(launch, call.arguments);
  return launch_words(launch, words);
}

}  // namespace

Command launch_local_command() {
  const auto o = std::make_shared<LaunchLocal>();
  return {.name = kLaunchLocal.name,
          .help = kLaunchLocal.help,
          .options = {{"recipe", &o->recipe_path, "recipe file; its keys may follow, as for braid train"},
                      {"--ranks", &o->ranks, "ranks (default: the recipe's, --nproc_per_node, or the GPUs here)",
                       kPositive},
                      {"--log-dir", &o->log_dir, "also add what rank N prints to rank_N.log in this folder"},
                      {"--oversubscribe", &o->oversubscribe, kOversubscribeHelp}},
          .extras = Extras::RecipeKeysOrCommand,
          .footer =
              "A torchrun command is run without torchrun: each rank gets torchrun's variables, and a rank that fails "
              "ends the run with its error.\n\n"
              "Example: braid launch local -- torchrun --nproc_per_node=8 train.py",
          .run = [o](Call& call) { call.exit_code = launch_here(*o, call); }};
}

Command run_command() {
  const auto o = std::make_shared<LaunchOptions>();
  const auto oversubscribe = std::make_shared<bool>(false);
  return {.name = kRun.name,
          .help = kRun.help,
          .options = {{"-n,--ranks", &o->ranks, "how many ranks", kRequired},
                      {"--log-dir", &o->log_dir, "also add what rank N prints to rank_N.log in this folder"},
                      {"--port", &o->port, "port of the store (default: the system chooses)",
                       Rules{.check = WholeRange{0, 65535}}},
                      {"--oversubscribe", oversubscribe.get(), kOversubscribeHelp},
                      {"command", &o->command, "program and arguments, after --", kRequired}},
          .positionals_last = true,
          .footer =
              "Each rank gets torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT). "
              "The exit code is that of the first rank that failed.\n\nExample: braid run -n 4 -- python3 train.py",
          .run = [o, oversubscribe](Call& call) {
            if (!*oversubscribe) refuse_oversubscription(o->ranks);
            call.exit_code = launch_local(*o);
          }};
}

}  // namespace braid
