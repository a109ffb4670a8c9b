// braid data bench: how fast a data set can be read, and where the time goes.
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <memory>

#include "base/strings.h"
#include "cli/commands.h"
#include "cli/data_call.h"
#include "cli/data_commands.h"
#include "data/inspect/reports.h"
#include "data/inspect/throughput.h"
#include "log/memory_use.h"

namespace braid {
namespace {

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

// CLI::Range accepts nan.
std::string is_duration(const std::string& text) {
  const auto seconds = parse_double(text);
  constexpr double kLeast = 0.001, kMost = 1e6;
  return seconds && *seconds >= kLeast && *seconds <= kMost
             ? ""
             : fmt::format("Value {} not in range {} to {}", text, kLeast, kMost);
}

void bench(const BenchCommand& command, const std::vector<std::string>& flags) {
  DataCall call = read_data_call(command.path, flags, DataUse::Training);
  require_tokenizer(call);
  call.options.lanes = 1;
  if (command.threads) call.options.loader.threads = *command.threads;
  const LaneSet set(std::move(call.options));
  WorkerPool pool(set.options.loader.threads);
  BenchResult result = {.threads = set.options.loader.threads};
  result.phases = measure_phases(set, kPhaseSeconds, *set.bad).phases;
  result.start_mb = host_memory().host_mb;
  result.totals = measure_loading(set, command.limits, *set.bad, pool);
  result.end_mb = host_memory().host_mb;
  if (command.json)
    print_json(result);
  else
    print_text(result, *set.bad);
}

}  // namespace

void add_data_bench_command(CLI::App& data) {
  auto command = std::make_shared<BenchCommand>();
  CLI::App* measuring = data.add_subcommand("bench", "Measure how fast a data set can be read, decoded and packed");
  measuring->add_option("path", command->path, "a recipe, or a data set with --data.tokenizer and --data.prompt_format")
      ->required();
  CLI::Option* seconds = measuring->add_option("--seconds", command->limits.seconds, "how long to measure")
                             ->check(is_duration)
                             ->capture_default_str();
  measuring->add_flag("--one-pass", command->limits.one_pass, "measure until each sample was read once")
      ->excludes(seconds);
  measuring->add_option("--threads", command->threads, "threads to use; default: loader.threads")
      ->check(CLI::Range(1, 1024));
  measuring->add_flag("--json", command->json, "print JSON, for programs");
  measuring->allow_extras();
  measuring->footer(short_overrides_help());
  measuring->callback([command, measuring] { bench(*command, measuring->remaining()); });
}

}  // namespace braid
