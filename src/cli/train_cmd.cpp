#include "cli/train_cmd.h"
#include <nlohmann/json.hpp>
#include <unistd.h>
#include "base/files.h"
#include "base/strings.h"
#include "base/terminal.h"
#include "base/utf8.h"
#include "ckpt/checkpoint_folder.h"
#include "ckpt/save_lock.h"
#include "cli/command.h"
#include "cli/from_megatron.h"
#include "cluster/local/local_launcher.h"
#include "cluster/megatron/commands.h"
#include "cluster/megatron/megatron_flags.h"
#include "plan/show.h"
#include "run/recipe.h"
#include "run/resume/checkpoint_config.h"

namespace braid {
namespace {

// Configures a run that saves no checkpoint, writes no log, and loads only the weights.
void evaluate_only(Recipe& recipe, const EvalOptions& options) {
  CheckpointConfig& checkpoint = recipe.checkpoint;
  if (checkpoint.load.empty() && checkpoint.load_nemotron.empty())
    throw ConfigError({"there is no checkpoint to evaluate", "checkpoint.load", "give --load FOLDER"});
  checkpoint.save.clear();
  checkpoint.must_exist = true;
  checkpoint.finetune = checkpoint.load_optimizer = checkpoint.load_scheduler = false;
  recipe.log = {};
  recipe.train.eval_iterations = options.iterations.value_or(recipe.train.eval_iterations);
  if (recipe.train.eval_iterations < 1)
    throw ConfigError({"the evaluation has no iterations", "train.eval_iterations", "give --iterations N"});
  if (options.wants_answers() && is_mock(recipe.data))
    throw ConfigError({"mock samples have no questions and answers", "data.path", "give --data-path FOLDER"});
  if (options.wants_answers() && is_gpt_data(recipe.data))
    throw ConfigError({"samples of Megatron's text have no questions and answers", "data.path",
                       "leave out --show, --answers and --html, or give --data-path FOLDER"});
}

int evaluate(const RankCommands& as_rank, const EvalOptions& options, const std::vector<std::string>& arguments,
             const std::vector<std::string>& command_line) {
  RecipeCall call = read_recipe_to_run(options.recipe_path, arguments);
  Recipe& recipe = call.recipe;
  evaluate_only(recipe, options);
  const Topology topology(recipe.topology, workload_of(recipe));
  const auto spec = world_spec_from(process_env());
  const StartProblems problems = start_problems({.source = call.source,
                                                 .log_dir = "",
                                                 .oversubscribe = options.oversubscribe,
                                                 .only_evaluates = true,
                                                 .outputs = options.outputs()},
                                                recipe, topology, spec);
  if (is_refused(problems, spec)) return 2;
  print_warnings(problems.warnings);
  if (spec) return as_rank.evaluate(options, recipe, topology, *spec, problems.list);
  return launch_local({.ranks = topology.world_size(),
                       .command = rank_command(command_line, options.recipe_path, call.source),
                       .forks_into_ranks = true,
                       .rank_coordinates = topology.all_coordinates()});
}

std::string checkpoint_line(const CheckpointConfig& checkpoint) {
  std::vector<std::string> parts;
  if (!checkpoint.load.empty())
    parts.push_back(!find_iteration(checkpoint.load, checkpoint.load_fallback == LoadFallback::Always)
                        ? fmt::format("starts from scratch, since {} has no checkpoint yet", checkpoint.load)
                    : checkpoint.finetune ? fmt::format("starts at iteration 0 with the weights of {}", checkpoint.load)
                                          : fmt::format("resumes from {}", checkpoint.load));
  if (!checkpoint.load_nemotron.empty()) parts.push_back(fmt::format("starts from {}", checkpoint.load_nemotron));
  if (!checkpoint.load_vision_from.empty())
    parts.push_back(fmt::format("encoder from {}", checkpoint.load_vision_from));
  if (!checkpoint.save.empty())
    parts.push_back(fmt::format("saves to {}{}", checkpoint.save,
                                checkpoint.save_interval ? fmt::format(" every {} and at the end",
                                                                       counted(*checkpoint.save_interval, "iteration"))
                                                         : " at the end"));
  return parts.empty() ? "" : fmt::format("braid: {}\n", fmt::join(parts, "; "));
}

struct TrainOptions {
  std::string recipe_path, log_dir;
  std::optional<std::string> from_megatron, run_script;
  bool print_recipe = false, megatron_flags = false, oversubscribe = false;
};

std::string saved_in_words(const std::string& save) {
  if (save.empty()) return "stopped; nothing was saved, since checkpoint.save is not set";
  try {
    const auto latest = latest_iteration(save);
    if (!latest) return fmt::format("stopped; nothing was saved: there is no complete checkpoint in '{}'", save);
    return fmt::format("stopped; the latest complete checkpoint in '{}' is of iteration {}", save, *latest);
  } catch (const std::exception& e) {
    return fmt::format("stopped; what was saved in '{}' is unknown: {}", save, e.what());
  }
}

std::unique_ptr<SaveLock> lock_save_folder(const RecipeCall& call, const JobIdentity& job) {
  const CheckpointConfig& config = call.recipe.checkpoint;
  if (config.save.empty()) return nullptr;
  const auto say = [](const std::string& text) {
    fmt::print("{}\n", fitted("braid: " + text, STDOUT_FILENO));
    std::fflush(stdout);
  };
  try {
    auto lock = std::make_unique<SaveLock>(config.save, SaveLock::Options{.job = job, .say = say});
    check_save_folder(config);  // again: another run may have saved there in the meantime
    return lock;
  } catch (const ConfigError& e) {
    throw ConfigError(located(e.problems(), call.source));
  }
}

// Whether the argument is a path and not flags of Megatron. A word without a flag can only be a path.
bool names_file(const std::string& given) {
  return is_file(given) || (!given.empty() && !given.starts_with("--") && given.find_first_of(" \t\n=") == given.npos);
}

int convert(const TrainOptions& options, const std::vector<ConfigOverride>& overrides) {
  const char* flag = options.run_script ? kRunScript : kFromMegatron;
  if (!options.recipe_path.empty())
    throw misuse(fmt::format("{} makes a recipe, but the command line also gives one: '{}'", flag, options.recipe_path),
                 fmt::format("leave one of them out; quote the argument of {} as one word", flag));
  if (!options.print_recipe)
    throw misuse(fmt::format("{} makes a recipe, which you should check before you run it", flag),
                 "add --print-recipe > recipe.yaml, then braid train recipe.yaml");
  const std::string& given = options.run_script ? *options.run_script : *options.from_megatron;
  const MegatronCommand command = options.run_script  ? read_megatron_command(run_script(given))
                                  : names_file(given) ? read_megatron_command(read_shell_file(given, kFromMegatron))
                                                      : read_megatron_command(given);
  const MegatronRecipe made = recipe_from_megatron(command, overrides);
  if (!made.has_model && (options.run_script || names_file(given)))
    throw ConfigError(
        {fmt::format("the model of '{}' is unknown: it needs the values of --hidden-size, --num-layers and "
                     "--num-attention-heads, or a --model-provider that Braid knows",
                     given),
         flag, "give the flags that the script passes to Megatron as text, or add --model-provider"});
  fmt::print("{}", made.yaml);
  if (!made.left_out.empty())
    fmt::print(stderr, "braid: left out (the first lines of the recipe say why):\n  {}\n",
               folded(visible_text(joined(made.left_out, ", ")), 78, "  ", ", "));
  return 0;
}

// Writes the full recipe, and prints a few lines: model, ranks, length, learning rate, checkpoints.
void announce(const TrainOptions& options, const RecipeCall& call, const Topology& topology) {
  const std::string path = options.log_dir.empty() ? "" : options.log_dir + "/recipe.yaml";
  std::error_code ignored;
  if (!path.empty()) fs::create_directories(options.log_dir, ignored);
  if (!path.empty() && !(std::ofstream(path) << to_yaml(call.recipe)).flush())
    throw ConfigError({fmt::format("cannot write '{}': {}", path, std::strerror(errno)), "--log-dir",
                       "give a folder that you can write to"});
  if (!call.already_so.empty())
    fmt::print(stderr, "braid: these flags have no effect, because Braid always does what they ask for:\n{}",
               call.already_so);
  const Recipe& recipe = call.recipe;
  const LrScheduleConfig& schedule = recipe.train.schedule;
  const std::string decay = fmt::format(" -> {} ({})", schedule.min_lr, schedule.decay_style);
  const std::string text = fmt::format(
      "braid: {} in {}, {} of {}, learning rate {}{}, seed {}\n"
      "{}braid: {}: {}\n"
      "braid: the full recipe: {}\n",
      recipe.model.provider, recipe.model.dtype, counted(iterations_of(length_of(recipe.train)), "iteration"),
      counted(recipe.train.global_batch, "sample"), schedule.lr, schedule.decay_style == "constant" ? "" : decay,
      recipe.train.seed, checkpoint_line(recipe.checkpoint), counted(topology.world_size(), "rank"),
      topology_line(topology), path.empty() ? "add --print-recipe" : path);
  fmt::print("{}", fitted(text, STDOUT_FILENO));
  std::fflush(stdout);
}

// Starts the ranks, or runs as one of them.
int train_recipe(const RankCommands& as_rank, const TrainOptions& options, RecipeCall call,
                 const std::vector<std::string>& command_line) {
  Recipe& recipe = call.recipe;
  const Env env = process_env();
  // Slurm counts requeues from 1; the variable is not set on the first run.
  const JobIdentity job = {.id = env("SLURM_JOB_ID").value_or(""),
                           .restarts = parse_int64(env("SLURM_RESTART_COUNT").value_or("0")).value_or(0)};
  // No user is there to decide when a job has been requeued.
  if (recipe.checkpoint.load_fallback == LoadFallback::Requeued && job.restarts > 0)
    recipe.checkpoint.load_fallback = LoadFallback::Always;
  const Topology topology(recipe.topology, workload_of(recipe));

  const auto spec = world_spec_from(process_env());
  const StartProblems problems =
      start_problems({call.source, options.log_dir, options.oversubscribe}, recipe, topology, spec);
  if (is_refused(problems, spec)) return 2;
  print_warnings(problems.warnings);
  const std::unique_ptr<SaveLock> lock = spec ? nullptr : lock_save_folder(call, job);
  const bool first = !spec || (spec->rank == 0 && spec->launcher != Launcher::Local);
  if (first && problems.list.empty()) announce(options, call, topology);
  if (spec) return as_rank.train(recipe, topology, *spec, job, problems.list);
  return launch_local({.ranks = topology.world_size(),
                       .command = rank_command(command_line, options.recipe_path, call.source),
                       .forks_into_ranks = true,
                       .log_dir = options.log_dir,
                       .env = {{kHeldLock, lock ? lock->text() : ""}},
                       .rank_coordinates = topology.all_coordinates(),
                       .stop_grace = kLongStopGrace,
                       .stop_messages = {.next = [&](const auto& progress) { return next_in_words(recipe, progress); },
                                         .saved = [&] { return saved_in_words(recipe.checkpoint.save); }}});
}

int run_train(const RankCommands& as_rank, const TrainOptions& options, const std::vector<std::string>& arguments,
              const std::vector<std::string>& command_line) {
  if (options.megatron_flags) {
    fmt::print("{}", megatron_flags_tables());
    return 0;
  }
  if (options.from_megatron || options.run_script) return convert(options, parse_overrides(arguments));
  if (options.recipe_path.empty())
    throw misuse("no recipe is given", "give one, e.g. recipes/tiny-vlm.yaml; see `braid train --help`");
  RecipeCall call = options.print_recipe ? read_recipe_call(options.recipe_path, arguments)
                                         : read_recipe_to_run(options.recipe_path, arguments);
  if (!options.print_recipe) return train_recipe(as_rank, options, std::move(call), command_line);
  fmt::print("{}", to_yaml(call.recipe));
  return 0;
}

}  // namespace

std::string next_in_words(const Recipe& recipe, const std::optional<RunProgress>& progress) {
  const std::string& save = recipe.checkpoint.save;
  const std::string ends = save.empty() ? "ending without a checkpoint, since checkpoint.save is not set"
                                        : fmt::format("saving to '{}'", save);
  if (!progress)
    return fmt::format("finishing the current iteration{}, then {}",
                       evaluates(recipe.train) ? ", or ending the evaluation early" : "", ends);
  const bool is_last = progress->iteration >= progress->iterations;
  if (progress->evaluates && is_last && !save.empty())
    return fmt::format("ending the evaluation early; the last iteration is saved in '{}'", save);
  if (progress->evaluates)
    return fmt::format("ending the evaluation of iteration {} early, then {}", progress->iteration, ends);
  if (is_last) return "the last iteration is done, " + ends;
  return fmt::format("finishing iteration {}, then {}", progress->iteration + 1, ends);
}

Command eval_command(const RankCommands& as_rank) {
  const auto o = std::make_shared<EvalOptions>();
  return {
      .name = "eval",
      .help = "Evaluate a checkpoint on the data of a recipe",
      .options =
          {{"recipe", &o->recipe_path, "recipe file; its keys may follow, as for braid train", kRequired},
           {"--iterations", &o->iterations,
            "how many steps' worth of samples to evaluate (default: the recipe's train.eval_iterations)", kPositive},
           {"--show", &o->shown, "print this many questions with the right and the model's (teacher-forced) answers",
            Rules{.check = NumberSign::NonNegative}},
           {"--answers", &o->answers, "file for all questions and (teacher-forced) answers, one JSON object per line"},
           {"--html", &o->page, "page with pictures, questions and answers; needs no other files"},
           {"--json", &o->json, "print one JSON object and nothing else"},
           {"--oversubscribe", &o->oversubscribe, kOversubscribeHelp}},
      .extras = Extras::RecipeKeys,
      .footer = "Example: braid eval recipe.yaml --load checkpoints --iterations 20\n\n",
      .run = [o, as_rank](Call& call) { call.exit_code = evaluate(as_rank, *o, call.arguments, call.command_line); }};
}

Command train_command(const RankCommands& as_rank) {
  const auto o = std::make_shared<TrainOptions>();
  return {
      .name = "train",
      .help = "Train the model of a recipe",
      .options = {{"recipe", &o->recipe_path, "recipe file, e.g. recipes/tiny-vlm.yaml; -: standard input"},
                  {"--log-dir", &o->log_dir,
                   "folder for logs: rank_N.log has the output of rank N in all starts, recipe.yaml the full recipe"},
                  {"--oversubscribe", &o->oversubscribe, kOversubscribeHelp},
                  {"--print-recipe", &o->print_recipe, "print the full recipe, with every default, and stop"},
                  {kFromMegatron, &o->from_megatron,
                   "a command line for Megatron-LM as one quoted word, or a file with one, or - for standard input; "
                   "with --print-recipe, prints the recipe for it"},
                  {kRunScript, &o->run_script, std::string("the same for what a script starts: ") + kRunScriptHelp,
                   Rules{.excludes = kFromMegatron}},
                  {"--megatron-flags", &o->megatron_flags,
                   "print what Braid does with each flag of Megatron-LM, and stop"}},
      .extras = Extras::RecipeKeys,
      .make_footer =
          [] {
            return "Without a launcher, braid train starts the recipe's ranks on this host; under torchrun --no-python "
                   "or srun, each process is one rank.\n\n" +
                   overrides_help();
          },
      .run =
          [o, as_rank](Call& call) {
            call.exit_code = run_train(as_rank, *o, call.arguments, call.command_line);
            if (call.exit_code != 0) std::clearerr(stdout);  // the error has been reported
          }};
}

}  // namespace braid
