// braid data order, pack and bench: what a run would read from a data set, in which order and how fast.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <memory>
#include <set>

#include "base/error.h"
#include "base/strings.h"
#include "base/terminal.h"
#include "base/utf8.h"
#include "cli/data_call.h"
#include "cli/recipe_call.h"
#include "data/inspect/reports.h"
#include "data/shards/lane.h"
#include "log/iteration_log.h"

namespace braid {
namespace {

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
  if (looks_like_recipe(command.path))
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

struct BenchResult {
  LoadTotals totals{};
  std::vector<LoadPhase> phases{};
  double start_mb = 0, end_mb = 0;
  int threads = 0;
};

void print_json(const BenchResult& result) {
  const LoadTotals& totals = result.totals;
  nlohmann::ordered_json phases = nlohmann::ordered_json::object();
  for (const LoadPhase& phase : result.phases) phases[phase.name] = phase.seconds;
  const nlohmann::ordered_json json = {{"threads", result.threads},   {"seconds", totals.seconds},
                                       {"samples", totals.samples},   {"sequences", totals.sequences},
                                       {"tokens", totals.tokens},     {"pictures", totals.pictures},
                                       {"patches", totals.patches},   {"bytes", totals.stored_bytes},
                                       {"phases", std::move(phases)}, {"host_mb", {result.start_mb, result.end_mb}}};
  fmt::print("{}\n", json.dump());
}

void print_text(const BenchResult& result, const BadSamples& bad) {
  const LoadTotals& totals = result.totals;
  const auto rate = [&](std::int64_t count) { return static_cast<double>(count) / totals.seconds; };
  fmt::print("{} in {:.1f} s with {}, per second:\n", counted(totals.samples, "sample"), totals.seconds,
             counted(result.threads, "thread"));
  fmt::print("  {:.0f} samples, {:.0f} sequences, {:.0f} tokens, {:.0f} pictures, {:.0f} patches, {:.1f} MB read\n",
             rate(totals.samples), rate(totals.sequences), rate(totals.tokens), rate(totals.pictures),
             rate(totals.patches), rate(totals.stored_bytes) / 1e6);
  double all = 0;
  std::vector<std::string> shares;
  for (const LoadPhase& phase : result.phases) all += phase.seconds;
  for (const LoadPhase& phase : result.phases)
    shares.push_back(fmt::format("{} {:.1f} %", phase.name, 100 * phase.seconds / std::max(all, 1e-9)));
  fmt::print("time of a thread: {}\nmemory: {:.0f} MB at the start, {:.0f} MB at the end\n{}", fmt::join(shares, ", "),
             result.start_mb, result.end_mb, show_skipped(bad));
}

void bench(const BenchCommand& command, const std::vector<std::string>& flags) {
  DataCall call = read_data_call(command.path, flags, DataUse::Training);
  require_tokenizer(call);
  call.options.lanes = 1;
  if (command.threads) call.options.loader.threads = *command.threads;
  const LaneSet set(std::move(call.options));
  WorkerPool pool(set.options.loader.threads);
  BenchResult result = {.threads = set.options.loader.threads};
  result.phases = measure_phases(set, kPhaseSeconds).phases;
  result.start_mb = host_memory().host_mb;
  result.totals = measure_loading(set, command.limits, pool);
  result.end_mb = host_memory().host_mb;
  if (command.json)
    print_json(result);
  else
    print_text(result, *set.bad);
}

}  // namespace

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
