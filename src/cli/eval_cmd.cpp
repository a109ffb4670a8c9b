// braid eval: the loss of a checkpoint on the recipe's split for evaluation, and the share of right answers.
#include <nlohmann/json.hpp>

#include <memory>

#include "cli/commands.h"
#include "cli/recipe_call.h"
#include "cli/start.h"
#include "cluster/local/host_capacity.h"
#include "cluster/local/local_launcher.h"
#include "comm/run_as_rank.h"
#include "log/run_log.h"
#include "run/output_files.h"
#include "run/trainer.h"

namespace braid {
namespace {

struct EvalOptions {
  std::string recipe_path;
  std::optional<int> iterations;
  std::size_t shown = 0;      // answers to print
  std::string answers, page;  // files
  bool json = false, oversubscribe = false;

  bool wants_answers() const { return shown > 0 || !answers.empty() || !page.empty(); }

  std::vector<OutputFile> outputs() const {
    return {{"--answers", answers, {".jsonl"}}, {"--html", page, {".html", ".htm"}}};
  }
};

// Nothing is written, and of the checkpoint only the weights are read.
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
}

std::string json_line(const CheckpointEvaluation& evaluation) {
  const EvaluationRecord& record = evaluation.record;
  nlohmann::ordered_json json = {{"iteration", record.iteration},
                                 {"consumed_samples", record.consumed_samples},
                                 {"lm_loss", record.lm_loss},
                                 {"perplexity", perplexity(record.lm_loss)},
                                 {"right_tokens", record.right_tokens},
                                 {"right_answers", record.right_answers},
                                 {"damaged_samples", evaluation.samples.damaged},
                                 {"too_long_samples", evaluation.samples.too_long},
                                 {"cut_samples", evaluation.samples.cut},
                                 {"samples_without_targets", evaluation.samples.without_targets}};
  for (const auto& [which, name] : {std::pair{AnswersOf::SamplesWithPictures, "right_answers_with_pictures"},
                                    {AnswersOf::SamplesWithoutPictures, "right_answers_without_pictures"}})
    if (const AnswerCounts counts = count_answers(evaluation.answers, which); counts.all > 0)
      json[name] = counts.share();
  return json.dump() + "\n";
}

std::string samples_text(const UnusableSamples& samples) {
  std::string text;
  const auto add = [&](const char* what, std::int64_t count) {
    if (count > 0) text += fmt::format("{}: {}\n", what, count);
  };
  add("damaged samples, which are left out", samples.damaged);
  add("samples that are too long and left out", samples.too_long);
  add("samples that are too long and cut", samples.cut);
  add("samples with nothing to predict, which are left out", samples.without_targets);
  return text;
}

void write_answers(const EvalOptions& options, const CheckpointEvaluation& evaluation) {
  if (!options.answers.empty()) {
    std::string lines;
    for (const ModelAnswer& answer : evaluation.answers) lines += answer_json(answer).dump() + "\n";
    write_output(options.answers, lines);
  }
  if (!options.page.empty()) {
    constexpr std::size_t kOnPage = 60;
    write_output(options.page, answers_page(*evaluation.data, evaluation.data->options.data.path,
                                            spread(evaluation.answers, kOnPage), evaluation.answers));
  }
}

int run_rank(const EvalOptions& options, const Recipe& recipe, const Topology& topology, const WorldSpec& spec,
             const std::vector<Problem>& problems) {
  const bool under_ours = spec.launcher == Launcher::Local;
  check_world(spec, topology);
  bool refused = false;
  run_as_rank(spec, recipe.dist, topology.all_coordinates(), [&](World& world) {
    refused = !under_ours && any_rank_refused(problems, world);
    if (refused) return;
    const bool speaks = spec.rank == logging_rank(topology);
    const auto note = [&](const std::string& line) {
      if (!options.json) RunLog::note_of_rank(line, spec.rank, under_ours);
    };
    const auto say = [&](const std::string& text) {
      if (speaks && !options.json) RunLog::note(text + "\n", under_ours);
    };
    const CheckpointEvaluation evaluation =
        evaluate_checkpoint(recipe, topology, world, options.wants_answers(), say, note);
    if (!speaks) return;
    write_answers(options, evaluation);
    std::string text = options.json ? json_line(evaluation) : to_lines(evaluation.record);
    if (!options.json) text += samples_text(evaluation.samples);
    if (options.wants_answers() && !options.json)
      text += "\n" + answers_text(spread(evaluation.answers, options.shown), evaluation.answers);
    RunLog::note(text, under_ours);
  });
  return refused ? 2 : 0;
}

int evaluate(const EvalOptions& options, const std::vector<std::string>& arguments,
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
  if (spec) return run_rank(options, recipe, topology, *spec, problems.list);
  return launch_local({.ranks = topology.world_size(),
                       .command = rank_command(command_line, options.recipe_path, call.source),
                       .rank_coordinates = topology.all_coordinates()});
}

}  // namespace

Command eval_command() {
  const auto o = std::make_shared<EvalOptions>();
  return {.name = kEval.name,
          .help = kEval.help,
          .options = {{"recipe", &o->recipe_path, "recipe file; its keys may follow, as for braid train", kRequired},
                      {"--iterations", &o->iterations,
                       "how many steps' worth of samples to evaluate (default: the recipe's train.eval_iterations)",
                       kPositive},
                      {"--show", &o->shown,
                       "print this many questions with the right and the model's (teacher-forced) answers",
                       Rules{.check = NumberSign::NonNegative}},
                      {"--answers", &o->answers,
                       "file for all questions and (teacher-forced) answers, one JSON object per line"},
                      {"--html", &o->page, "page with pictures, questions and answers; needs no other files"},
                      {"--json", &o->json, "print one JSON object and nothing else"},
                      {"--oversubscribe", &o->oversubscribe, kOversubscribeHelp}},
          .extras = Extras::RecipeKeys,
          .footer = "Example: braid eval recipe.yaml --load checkpoints --iterations 20\n\n",
          .run = [o](Call& call) { call.exit_code = evaluate(*o, call.arguments, call.command_line); }};
}

}  // namespace braid
