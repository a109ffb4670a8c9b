// One rank of braid train or eval.
#include <nlohmann/json.hpp>
#include "cli/train_cmd.h"
#include "comm/run_as_rank.h"
#include "log/run_log.h"
#include "run/trainer.h"

namespace braid {
namespace {

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

int evaluate_as_rank(const EvalOptions& options, const Recipe& recipe, const Topology& topology, const WorldSpec& spec,
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
    const UnusableSamples& samples = evaluation.samples;
    for (const auto& [what, count] : {std::pair("damaged samples, which are left out", samples.damaged),
                                      {"samples that are too long and left out", samples.too_long},
                                      {"samples that are too long and cut", samples.cut},
                                      {"samples with nothing to predict, which are left out", samples.without_targets}})
      if (count > 0 && !options.json) text += fmt::format("{}: {}\n", what, count);
    if (options.wants_answers() && !options.json)
      text += "\n" + answers_text(spread(evaluation.answers, options.shown), evaluation.answers);
    RunLog::note(text, under_ours);
  });
  return refused ? 2 : 0;
}

int train_as_rank(const Recipe& recipe, const Topology& topology, const WorldSpec& spec, const JobIdentity& job,
                  const std::vector<Problem>& problems) {
  const bool under_ours = spec.launcher == Launcher::Local;
  const StopRequest stop(StopRequest::Clock::now(), {.rank = spec.rank,
                                                     .next = next_in_words(recipe, std::nullopt),
                                                     .speaks_for_all = !under_ours && spec.rank == 0,
                                                     .parent_is_launcher = under_ours});
  check_world(spec, topology);
  const RunContext context = {.stop = stop,
                              .under_braid_launcher = under_ours,
                              .job = job,
                              .held_lock = under_ours ? process_env()(kHeldLock).value_or("") : ""};
  std::optional<RunResult> result;  // none: refused
  run_as_rank(
      spec, recipe.dist, topology.all_coordinates(),
      [&](World& world) {
        if (under_ours || !any_rank_refused(problems, world)) result = train(recipe, topology, world, context);
      },
      [&] { return stop.asked(); });
  if (!result) return 2;
  const int signal = interrupting_signal(result->stop);
  if (!under_ours) return signal ? 128 + signal : result->lost_output ? 1 : 0;
  // To our launcher, a rank with a nonzero exit code has failed.
  if (result->lost_output) RunLog::print_to_stdout(to_control_line(LostOutput{}));
  if (signal) RunLog::print_to_stdout(to_control_line(EndedBySignal{signal}));
  return 0;
}

}  // namespace

RankCommands rank_commands() { return {.train = train_as_rank, .evaluate = evaluate_as_rank}; }

}  // namespace braid
