// braid data inspect: what a data set contains.
#include <nlohmann/json.hpp>

#include <limits>
#include <memory>
#include <set>
#include <string>

#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "cli/data_call.h"
#include "cli/recipe_call.h"
#include "data/inspect/reports.h"
#include "predict/step_draws.h"
#include "run/output_files.h"

namespace braid {
namespace {

struct InspectCommand {
  std::string path, split, count = "1000", html, stats;
  std::int64_t show = 24, sequences = 2000;
  bool json = false, decodes = false, all_damaged = false;
};

std::int64_t count_of(const std::string& text) {
  if (text == "all") return std::numeric_limits<std::int64_t>::max();
  const auto count = parse_int64(text);
  if (!count || *count < 1)
    throw ConfigError({fmt::format("--count should be a number from 1, or all, not {}", in_quotes(text)),
                       "command line", "e.g. --count 1000"});
  return *count;
}

// JSONL files have no splits. A data set need not have one for evaluation, but then a run cannot evaluate.
std::vector<DataSetCount> count_splits(const DataConfig& data, const Blend& training) {
  std::vector<DataSetCount> counts = count_data_sets(training);
  if (data.valid_split == data.split || kind_of_path(data.path) == PathKind::Jsonl) return counts;
  try {
    for (DataSetCount& count : count_data_sets(*open_blend(data.path, data.valid_split)))
      counts.push_back(std::move(count));
  } catch (const ConfigError& e) {
    for (const Problem& problem : e.problems())
      fmt::print(stderr, "braid: WARNING: nothing to evaluate on (data.valid_split): {} in {}\n", problem.what,
                 visible_text(problem.where.empty() ? data.path : problem.where));
  }
  return counts;
}

std::vector<SampleRef> shown(const SpreadSamples& samples, std::int64_t most) {
  const std::int64_t count = std::min(samples.size(), most);
  std::vector<SampleRef> chosen;
  for (std::int64_t i = 0; i < count; ++i)
    if (const auto ref = samples.at(i * (samples.size() / count))) chosen.push_back(*ref);
  return chosen;
}

void check_files(const InspectCommand& command, const InputFiles& inputs) {
  check_outputs({{"--html", command.html, {".html", ".htm"}}, {"--stats", command.stats, {".json"}}}, inputs);
}

// What a planner needs: the counts of the survey, and the sizes of training sequences as the recipe makes them.
std::string stats_text(const SurveyReport& report, LaneSetOptions options, std::int64_t sequences) {
  nlohmann::ordered_json stats = stats_json(report);
  if (options.sequence_length > 0 && report.survey.has_usable()) {
    // The report names the damaged samples.
    options.bad = std::make_shared<BadSamples>(std::numeric_limits<std::int64_t>::max(), nullptr);
    const LaneSet set(std::move(options));
    DataStats sampled = sample_sequences(set, sequences);
    sampled.reading = measure_reading(set, sampled);
    stats.update(to_json(sampled));
  }
  return stats.dump() + "\n";
}

void inspect(const InspectCommand& command, const std::vector<std::string>& flags) {
  const std::int64_t count = count_of(command.count);
  const LaneSetOptions options = [&] {
    DataCall call = read_data_call(command.path, flags, DataUse::Training);
    if (!call.has_tokenizer) call.options.sequence_length = 0;
    if (!command.split.empty()) call.options.split = call.options.data.split = command.split;
    return call.options;
  }();
  const auto blend = open_blend(options.data.path, options.split);
  if (std::vector<Problem> problems = unreadable_leaves(*blend, options.data.fields); !problems.empty())
    throw ConfigError(std::move(problems));
  check_files(command, {command.path, options.data, blend});
  SampleReader reader(blend, LaneSet::kMostOpenShards,
                      {.pauses = options.read_pauses,
                       .only_system_errors = true,
                       .say = [bad = options.bad](const std::string& text) { bad->say(text); }});
  std::optional<SequenceMaker> sequences;
  if (options.sequence_length > 0)
    sequences.emplace(options.data, std::make_shared<Tokenizer>(load_tokenizer(options.data.tokenizer)), options.vision,
                      options.sequence_length);
  if (sequences) print_warnings(sequences->warnings());
  std::set<std::string> excludes;  // a blend may name a data set twice
  for (const Leaf& leaf : blend->leaves)
    for (std::string& warning : exclude_warnings(leaf.data.path, leaf.data.unknown_excludes))
      excludes.insert(std::move(warning));
  print_warnings({excludes.begin(), excludes.end()});
  SurveySources sources = {.blend = *blend,
                           .reader = reader,
                           .sequences = sequences ? &*sequences : nullptr,
                           .data = options.data,
                           .loader = options.loader,
                           .decodes = command.decodes};
  if (command.all_damaged || command.json) sources.most_named = std::numeric_limits<std::size_t>::max();
  WorkerPool pool(options.loader.threads);
  const SpreadSamples samples(*blend, count);
  const SurveyReport report = {command.path, count_splits(options.data, *blend), survey(sources, samples, pool),
                               options.sequence_length};
  if (!command.stats.empty()) write_output(command.stats, stats_text(report, options, command.sequences));
  if (!command.html.empty()) {
    std::vector<std::string> views;
    for (const SampleRef& ref : shown(samples, command.show))
      views.push_back(sample_html(sources, options.vision, ref));
    write_output(command.html, survey_page(report, views));
  }
  if (command.json)
    fmt::print("{}\n", survey_json(report).dump(2));
  else
    fmt::print("{}", show_survey(report));
  if (!report.survey.has_usable())
    throw DataError(fmt::format("'{}' has no usable sample among the {} that were looked at: the lines above say why",
                                command.path, report.survey.samples));
}

}  // namespace

Command data_inspect_command() {
  const auto o = std::make_shared<InspectCommand>();
  return {
      .name = "inspect",
      .help = "Show what a data set contains, and what is damaged in it",
      .options = {{"path", &o->path, "a recipe, a data set's folder, a .jsonl file or a metadataset", kRequired},
                  {"--split", &o->split, "split to look at (default: data.split)"},
                  {"--count", &o->count, "how many samples to look at, spread over the split; or all", kDefaultShown},
                  {"--decode", &o->decodes, "decode every picture: finds damage that headers do not show"},
                  {"--all-damaged", &o->all_damaged, "name all damaged samples; default: 20, with --json all"},
                  {"--json", &o->json, "print JSON, for programs"},
                  {"--stats", &o->stats, "write lengths, picture sizes and the sizes of training sequences, as JSON",
                   Rules{.value_name = "FILE"}},
                  {"--sequences", &o->sequences, "how many training sequences --stats stores",
                   Rules{.check = WholeRange{1, 1'000'000}, .shows_default = true}},
                  {"--html", &o->html, "write a page with pictures, chats and what is predicted",
                   Rules{.value_name = "FILE"}},
                  {"--show", &o->show, "how many samples the page shows",
                   Rules{.check = WholeRange{0, 1000}, .shows_default = true}}},
      .extras = Extras::RecipeKeys,
      .footer =
          "Lengths need a tokenizer: give a recipe, or add --data.tokenizer PATH --data.prompt_format NAME "
          "--data.sequence_length N.\n",
      .run = [o](Call& call) { inspect(*o, call.arguments); }};
}

}  // namespace braid
