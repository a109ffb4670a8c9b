// braid data inspect, order, pack and bench: what a data set contains, what a run would read from it, and how fast.
#include <nlohmann/json.hpp>
#include <yaml-cpp/yaml.h>
#include "base/error.h"
#include "base/strings.h"
#include "base/terminal.h"
#include "base/utf8.h"
#include "cli/command.h"
#include "cli/start.h"
#include "data/inspect/reports.h"
#include "data/shards/lane.h"
#include "data/text/tokenizer.h"
#include "log/iteration_log.h"
#include "predict/step_draws.h"
#include "run/output_files.h"

namespace braid {
namespace {

bool has_any_section(const std::string& path, std::initializer_list<const char*> sections) {
  try {
    const YAML::Node root = YAML::LoadFile(path);
    return root.IsMap() && std::ranges::any_of(sections, [&](const char* name) { return root[name].IsDefined(); });
  } catch (const std::exception&) {
    return false;  // whoever reads it next says what is wrong
  }
}

// Metadatasets are YAML files as recipes are; only they have a section `splits`.
bool is_metadataset(const std::string& path) { return has_any_section(path, {"splits"}); }

Recipe recipe_for(const std::string& data_set, const std::vector<std::string>& flags) {
  const nlohmann::json quoted = data_set;
  const std::string text =
      fmt::format("topology: {{modules: {{images: {{kind: encoder}}, language: {{}}}}}}\ndata: {{path: {}}}\n",
                  quoted.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  Recipe recipe = parse_recipe(RecipeSource{data_set, text, parse_overrides(flags)}, RecipeChecks::TopologyOnly);
  Problems problems = validate(recipe.loader, "loader");
  append(problems, sequence_length_problems(recipe.data.sequence_length.value_or(1)));
  if (!recipe.data.set.tokenizer.empty()) append(problems, validate(recipe.data.set, "data"));
  throw_if_any(std::move(problems));
  return recipe;
}

// What inspect, pack and bench look at.
struct DataCall {
  LaneSetOptions options;     // damaged samples are named on stderr
  bool has_tokenizer = true;  // a data set alone may be looked at without one
};

// `path`: a recipe, or what data.path may be. A data set alone is read as by a recipe that has only data.path, with the
// flags after it; its model may have any id for pictures, or none. ConfigError for a recipe of mock samples.
DataCall read_data_call(const std::string& path, const std::vector<std::string>& flags, DataUse use) {
  if (path != "-" && !is_there(path))
    throw ConfigError({fmt::format("{} does not exist", in_quotes(path)), "PATH",
                       "give a recipe, a data set's folder, a .jsonl file or a metadataset"});
  const bool is_alone = is_folder(path) ||
                        (is_file(path) && (path.ends_with(".jsonl") || path.ends_with(".bin") || is_metadataset(path)));
  const Recipe recipe = is_alone ? recipe_for(path, flags) : read_recipe_call(path, flags).recipe;
  if (is_mock(recipe.data) || recipe.data.set.path.empty())
    throw ConfigError({"the recipe has no data set to look at", fmt::format("{}, data.path", path),
                       "set data.path, or give the path of a data set instead of a recipe"});
  if (is_gpt_data(recipe.data))
    throw ConfigError({fmt::format("{} is Megatron's text in Megatron's order, which this command does not show",
                                   in_quotes(recipe.data.set.path)),
                       fmt::format("{}, data.path", path), "give the path of a .bin file to look at its documents"});
  DataCall call = {lane_set_options(recipe, Topology(recipe.topology, workload_of(recipe)), recipe.train.seed, use),
                   !recipe.data.set.tokenizer.empty()};
  const auto say = [](const std::string& text) { fmt::print(stderr, "braid: {}\n", visible_text(text)); };
  call.options.bad = std::make_shared<BadSamples>(recipe.data.set.max_bad_samples, say, say);
  if (is_alone && call.has_tokenizer && call.options.vision) {
    const std::string token = call.options.vision->token;
    if (const auto id = load_tokenizer(recipe.data.set.tokenizer).find(token)) {
      call.options.vision->token_id = *id;
    } else {
      say(fmt::format("the tokenizer has no token {}, so samples with pictures cannot be used", in_quotes(token)));
      call.options.vision.reset();
      call.options.media.clear();
    }
  }
  return call;
}

void require_tokenizer(const DataCall& call) {
  if (!call.has_tokenizer)
    throw misuse("a data set alone has no tokenizer",
                 "give a recipe, or add --data.tokenizer PATH --data.prompt_format NAME --data.sequence_length N");
}

struct InspectCommand {
  std::string path, split, count = "1000", html, stats;
  std::int64_t show = 24, sequences = 2000;
  bool json = false, decodes = false, all_damaged = false;
};

// A data set need not have one for evaluation, but then a run cannot evaluate.
std::vector<DataSetCount> count_splits(const DataConfig& data, const Blend& training) {
  std::vector<DataSetCount> counts = count_data_sets(training);
  if (data.valid_split == data.split || !has_splits(kind_of_path(data.path))) return counts;
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
  const auto count = command.count == "all" ? std::numeric_limits<std::int64_t>::max() : parse_int64(command.count);
  if (!count || *count < 1)
    throw misuse(fmt::format("--count should be a number from 1, or all, not {}", in_quotes(command.count)),
                 "e.g. --count 1000");
  DataCall call = read_data_call(command.path, flags, DataUse::Training);
  LaneSetOptions& options = call.options;
  if (!call.has_tokenizer) options.sequence_length = 0;
  if (!command.split.empty()) options.split = options.data.split = command.split;
  const auto blend = open_blend(options.data.path, options.split);
  throw_if_any(unreadable_leaves(*blend, options.data.fields));
  check_outputs({{"--html", command.html, {".html", ".htm"}}, {"--stats", command.stats, {".json"}}},
                {command.path, options.data, blend});
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
  const SpreadSamples samples(*blend, *count);
  const SurveyReport report = {command.path, count_splits(options.data, *blend), survey(sources, samples, pool),
                               options.sequence_length};
  if (!command.stats.empty()) write_output(command.stats, stats_text(report, options, command.sequences));
  if (!command.html.empty()) {
    const std::int64_t shown = std::min(samples.size(), command.show);
    std::vector<std::string> views;
    for (std::int64_t i = 0; i < shown; ++i)
      if (const auto ref = samples.at(i * (samples.size() / shown)))
        views.push_back(sample_html(sources, options.vision, *ref));
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

constexpr WholeRange kAnyCount = {0, std::int64_t{1} << 40};

struct OrderCommand {
  std::string path, split = "train";
  OrderConfig order{};
  int lane = 0;
  std::int64_t skip = 0, count = 20;
  bool evaluates = false;
};

// Each sample must be drawn to know the next: that many take about a minute.
constexpr std::int64_t kMostSkippedSamples = 1'000'000'000;

// A name stays on its line; spaces in it are as they are, as in Energon's names.
std::string on_one_line(const std::string& name) {
  std::string line;
  for (const char c : visible_text(name)) line += c == '\t' ? "\\x09" : c == '\n' ? "\\x0a" : std::string(1, c);
  return line;
}

void print_order(OrderCommand command) {
  if (is_file(command.path) && !is_metadataset(command.path) &&
      has_any_section(command.path, {"topology", "model", "data", "train"}))
    throw ConfigError(
        {fmt::format("{} is a recipe, not a data set", in_quotes(command.path)), "PATH",
         fmt::format("give its data.path, a data set or a metadataset; or use `braid data pack {}`, which "
                     "takes a recipe",
                     command.path)});
  command.order.is_training = !command.evaluates;
  const auto blend = open_blend(command.path, command.split);
  Lane lane(blend, command.order, command.lane);
  SampleReader reader(blend);
  for (std::int64_t i = 0; i < command.skip; ++i)
    if (!lane.next()) return;
  for (std::int64_t i = 0; i < command.count; ++i) {
    const auto ref = lane.next();
    if (!ref) return;
    fmt::print("{} {}\n", on_one_line(reader.shard_of(*ref).name), on_one_line(reader.key(*ref)));
  }
}

struct PackCommand {
  std::string path;
  int lane = 0;
  std::int64_t skip = 0, count = 10;
  bool json = false, evaluates = false;
};

// Each sequence must be packed to know the next: that many take some minutes.
constexpr std::int64_t kMostSkippedSequences = 10'000'000;

void print_packs(const PackCommand& command, const std::vector<std::string>& flags) {
  DataCall call = read_data_call(command.path, flags, command.evaluates ? DataUse::Evaluation : DataUse::Training);
  require_tokenizer(call);
  if (command.lane < 0 || command.lane >= call.options.lanes)
    throw ConfigError({fmt::format("there is no lane {}", command.lane), "--lane",
                       fmt::format("the recipe has {}, from 0", counted(call.options.lanes, "lane"))});
  const LaneSet set(std::move(call.options));
  WorkerPool pool(set.options.loader.threads);
  PackLane lane(set, pool, set.order(), command.lane);
  WorkStatus status;
  std::vector<PackSize> sizes;
  std::set<SampleId> packed;
  std::int64_t number = 0;
  while (number < command.skip && lane.next())
    status.show("packing what is left out", static_cast<double>(++number) / static_cast<double>(command.skip));
  status.clear();
  for (; number < command.skip + command.count; ++number) {
    const auto pack = lane.next();
    if (!pack) break;
    if (command.json) {
      fmt::print("{}\n", pack_json(*pack, set.options.sequence_length).dump());
      continue;
    }
    sizes.push_back(size_of(*pack));
    for (const ReadSample& sample : *pack)
      sizes.back().repeated += !packed.insert(id_of_sample(*sample.shard, sample.ref.index)).second;
  }
  if (command.json)
    fmt::print("{}\n", skipped_json(*set.bad).dump());
  else
    fmt::print("{}{}", show_packs(sizes, set.options.sequence_length), show_skipped(*set.bad));
  if (number == 0 && command.skip + command.count > 0)
    throw DataError(fmt::format("lane {} of split '{}' has no sample that can be used in a sequence of {} tokens: {}",
                                command.lane, set.options.split, set.options.sequence_length,
                                set.bad->why_none_is_left()));
  if (number < command.skip + command.count)
    fmt::print(stderr, "braid: lane {} of split '{}' ends after {}\n", command.lane, set.options.split,
               counted(number, "sequence"));
}

constexpr double kPhaseSeconds = 1;

struct BenchCommand {
  std::string path;
  LoadLimits limits{};
  std::optional<int> threads{};
  bool json = false;
};

void bench(const BenchCommand& command, const std::vector<std::string>& flags) {
  DataCall call = read_data_call(command.path, flags, DataUse::Training);
  require_tokenizer(call);
  call.options.lanes = 1;
  if (command.threads) call.options.loader.threads = *command.threads;
  const LaneSet set(std::move(call.options));
  WorkerPool pool(set.options.loader.threads);
  const int threads = set.options.loader.threads;
  const std::vector<LoadPhase> phases = measure_phases(set, kPhaseSeconds).phases;
  const double start_mb = host_memory().host_mb;
  const LoadTotals totals = measure_loading(set, command.limits, pool);
  const double end_mb = host_memory().host_mb;
  if (command.json) {
    nlohmann::ordered_json by_name = nlohmann::ordered_json::object();
    for (const LoadPhase& phase : phases) by_name[phase.name] = phase.seconds;
    const nlohmann::ordered_json json = {{"threads", threads},           {"seconds", totals.seconds},
                                         {"samples", totals.samples},    {"sequences", totals.sequences},
                                         {"tokens", totals.tokens},      {"pictures", totals.pictures},
                                         {"patches", totals.patches},    {"bytes", totals.stored_bytes},
                                         {"phases", std::move(by_name)}, {"host_mb", {start_mb, end_mb}}};
    return fmt::print("{}\n", json.dump());
  }
  const auto rate = [&](std::int64_t count) { return static_cast<double>(count) / totals.seconds; };
  double all = 0;
  std::vector<std::string> shares;
  for (const LoadPhase& phase : phases) all += phase.seconds;
  for (const LoadPhase& phase : phases)
    shares.push_back(fmt::format("{} {:.1f} %", phase.name, 100 * phase.seconds / std::max(all, 1e-9)));
  fmt::print("{} in {:.1f} s with {}, per second:\n", counted(totals.samples, "sample"), totals.seconds,
             counted(threads, "thread"));
  fmt::print("  {:.0f} samples, {:.0f} sequences, {:.0f} tokens, {:.0f} pictures, {:.0f} patches, {:.1f} MB read\n",
             rate(totals.samples), rate(totals.sequences), rate(totals.tokens), rate(totals.pictures),
             rate(totals.patches), rate(totals.stored_bytes) / 1e6);
  fmt::print("time of a thread: {}\nmemory: {:.0f} MB at the start, {:.0f} MB at the end\n{}", fmt::join(shares, ", "),
             start_mb, end_mb, show_skipped(*set.bad));
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

Command data_order_command() {
  const auto o = std::make_shared<OrderCommand>();
  OrderConfig& order = o->order;
  return {
      .name = "order",
      .help = "Print which samples a lane reads, in order: shard and key",
      .options = {{"path", &o->path, "a prepared folder, a .jsonl file, or a metadataset's .yaml file", kRequired},
                  {"--lanes", &order.lanes, "how many lanes share the samples (Energon's world size)", kDefaultShown},
                  {"--lane", &o->lane, "which of them, from 0 (Energon's rank)", kDefaultShown},
                  {"--workers", &order.workers, "workers per lane (Energon's num_workers); 0 means 1", kDefaultShown},
                  {"--seed", &order.seed, "seed of the order (Energon's seed_offset)",
                   Rules{.check = WholeRange{-kLargestSeed, kLargestSeed}, .shows_default = true}},
                  {"--split", &o->split, "split to read", kDefaultShown},
                  {"--count", &o->count, "how many samples to print", Rules{.check = kAnyCount, .shows_default = true}},
                  {"--skip", &o->skip, "how many samples to leave out first; each must be drawn",
                   Rules{.check = WholeRange{0, kMostSkippedSamples}, .shows_default = true}},
                  {"--shuffle-buffer", &order.shuffle_buffer, "samples that each worker shuffles at a time",
                   kDefaultShown},
                  {"--max-samples-per-sequence", &order.max_samples_per_sequence,
                   "how many samples are read in a row (default: those of a shard)"},
                  {"--eval", &o->evaluates, "each sample once, in the order of the shards, as in evaluation"}},
      .footer = "Example:\n  braid data order blend.yaml --lanes 4 --lane 2 --workers 2 --count 100",
      .run = [o](Call&) { print_order(*o); }};
}

Command data_pack_command() {
  const auto o = std::make_shared<PackCommand>();
  return {
      .name = "pack",
      .help = "Print the packed sequences that a recipe's data set gives",
      .options =
          {{"recipe", &o->path, "a recipe, or a data set with --data.tokenizer and --data.prompt_format", kRequired},
           {"--count", &o->count, "how many sequences to print", Rules{.check = kAnyCount, .shows_default = true}},
           {"--skip", &o->skip, "how many sequences to leave out first; each must be packed",
            Rules{.check = WholeRange{0, kMostSkippedSequences}, .shows_default = true}},
           {"--lane", &o->lane, "which lane to follow, from 0", kDefaultShown},
           {"--eval", &o->evaluates, "the sequences of evaluation, from data.valid_split, each sample once"},
           {"--json", &o->json,
            "one JSON object per sequence: samples, lengths, borders, labels and media, for programs; at the end one "
            "with the number of skipped samples"}},
      .extras = Extras::RecipeKeys,
      .run = [o](Call& call) { print_packs(*o, call.arguments); }};
}

Command data_bench_command() {
  const auto o = std::make_shared<BenchCommand>();
  return {.name = "bench",
          .help = "Measure how fast a data set can be read, decoded and packed",
          .options = {{"path", &o->path, "a recipe, or a data set with --data.tokenizer and --data.prompt_format",
                       kRequired},
                      {"--seconds", &o->limits.seconds, "how long to measure",
                       Rules{.check = RealRange{0.001, 1e6}, .shows_default = true}},
                      {"--one-pass", &o->limits.one_pass, "measure until each sample was read once",
                       Rules{.excludes = "--seconds"}},
                      {"--threads", &o->threads, "threads to use; default: loader.threads",
                       Rules{.check = WholeRange{1, 1024}}},
                      {"--json", &o->json, "print JSON, for programs"}},
          .extras = Extras::RecipeKeys,
          .run = [o](Call& call) { bench(*o, call.arguments); }};
}

}  // namespace braid
