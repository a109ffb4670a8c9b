#include "report/read_run.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/strings.h"
#include "ckpt/checkpoint_folder.h"
#include "cluster/doctor/report.h"
#include "log/log_files.h"
#include "report/read_log.h"
#include "report/read_metrics.h"
#include "report/run_record.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

// Adds the curves that are not there yet.
void add_curves(Curves& curves, Curves&& more) { curves.merge(std::move(more)); }

void add_recipe(RunFiles& files, RunRecord& run) {
  if (files.recipe.empty()) return;
  const auto settings = read_settings(files.recipe);
  if (!settings) {
    run.warnings.push_back(fmt::format("{} is not YAML", files.recipe));
    return;
  }
  run.sources.push_back(files.recipe);
  run.settings = *settings;
  run.ranks = ranks_of(*settings);
  const auto setting = [&](const char* key) {
    const auto found = settings->find(key);
    return found == settings->end() ? std::string() : found->second;
  };
  run.model = setting("model.provider");
  std::error_code error;
  if (const std::string path = setting("log.metrics_file"); files.metrics.empty() && fs::is_regular_file(path, error))
    files.metrics.push_back(path);
  if (const std::string path = setting("checkpoint.save");
      files.checkpoint_roots.empty() && fs::is_directory(path, error))
    files.checkpoint_roots.push_back(path);
  if (const std::string path = setting("log.tensorboard_dir"); files.events.empty() && fs::is_directory(path, error))
    for (const auto& entry : fs::directory_iterator(path, error))
      if (entry.path().filename().string().find("tfevents") != std::string::npos)
        files.events.push_back(entry.path().string());
  std::sort(files.events.begin(), files.events.end());
}

// Returns the result of `read`; or nothing, and a warning, if it throws because the file cannot be read.
template <class Read>
auto unless_unreadable(RunRecord& run, const Read& read) -> std::optional<decltype(read())> {
  try {
    return read();
  } catch (const std::runtime_error& error) {
    run.warnings.push_back(split(error.what(), '\n').front());  // without advice on the command line
    return std::nullopt;
  }
}

void add_metrics(const RunFiles& files, RunRecord& run) {
  for (const std::string& path : files.metrics) {
    auto read = unless_unreadable(run, [&] { return read_metrics(path); });
    if (!read) continue;
    MetricsContents& contents = *read;
    if (contents.lines == 0) {
      run.warnings.push_back(fmt::format("{} has no line of an iteration", path));
      continue;
    }
    run.sources.push_back(path);
    if (contents.bad_lines > 0)
      run.warnings.push_back(
          fmt::format("{}: {} cut off or damaged, and not used", path,
                      counted(contents.bad_lines, "line") + (contents.bad_lines == 1 ? " is" : " are")));
    add_curves(run.curves, std::move(contents.curves));
    if (!run.attempts.empty()) continue;
    run.attempts = std::move(contents.attempts);
    run.skipped = std::move(contents.skipped);
    run.skipped_count = std::ssize(run.skipped);
    run.nan_count = contents.nans;
  }
}

// "time-ms/images/forward": {"time-ms", "images", "forward"}
std::vector<std::string> parts_of(const std::string& tag) { return split(tag, '/'); }

struct EventBuilders {
  CurveBuilder curves{}, memory{};
  std::map<std::string, ModuleBuilder> modules{};

  void add(const ScalarEvent& event) {
    static const std::map<std::string, const char*> names = {{"lm loss", "lm_loss"},
                                                             {"lm loss validation", "validation_loss"},
                                                             {"right tokens validation", "right_tokens"},
                                                             {"right answers validation", "right_answers"},
                                                             {"learning-rate", "learning_rate"},
                                                             {"grad-norm", "grad_norm"},
                                                             {"loss-scale", "loss_scale"},
                                                             {"seq_load_balancing_loss", "load_balancing_loss"},
                                                             {"load_balancing_loss", "load_balancing_loss"},
                                                             {"iteration-time-ms", "iteration_ms"},
                                                             {"throughput", "tflops_per_gpu"},
                                                             {"tokens-per-second-per-gpu", "tokens_per_gpu"},
                                                             {"tokens-per-second-per-rank", "tokens_per_gpu"},
                                                             {"iteration-time", "iteration_s"}};
    static const std::map<std::string, const char*> memory_names = {{"mem/cuda-allocated-mb", "GPU, tensors"},
                                                                    {"mem/cuda-peak-mb", "GPU, most by tensors"},
                                                                    {"mem/host-rss-mb", "host"},
                                                                    {"mem/host-peak-mb", "host, most"}};
    if (const auto name = names.find(event.tag); name != names.end()) {
      const std::string curve = name->second;
      if (curve == "iteration_s")  // Megatron's
        curves.add("iteration_ms", event.step, 1e3 * event.value);
      else
        curves.add(curve, event.step, event.value);
      if (curve == "lm_loss") curves.add("time", event.step, event.wall_time);
    } else if (const auto memory_name = memory_names.find(event.tag); memory_name != memory_names.end()) {
      memory.add(memory_name->second, event.step, event.value);
    } else if (const auto parts = parts_of(event.tag); parts.size() == 3) {
      if (parts[0] == "time-ms") modules[parts[1]].phases.add(parts[2], event.step, event.value);
      if (parts[0] == "comm-ms") modules[parts[1]].in_flight.add(parts[2], event.step, event.value);
      if (parts[0] == "comm-exposed-ms") modules[parts[1]].exposed.add(parts[2], event.step, event.value);
    }
  }
};

// A file is what one process wrote.
std::optional<Attempt> attempt_of(const EventFileContents& contents) {
  std::optional<Attempt> attempt;
  for (const ScalarEvent& event : contents.scalars) {
    if (event.tag != "lm loss") continue;
    if (!attempt) attempt = {.first = event.step, .began = event.wall_time};
    attempt->last = event.step;
    attempt->ended = event.wall_time;
  }
  return attempt;
}

void add_events(const RunFiles& files, RunRecord& run) {
  EventBuilders builders;
  std::vector<Attempt> attempts;
  for (const std::string& path : files.events) {
    const auto contents = unless_unreadable(run, [&] { return read_events(path); });
    if (!contents) continue;
    run.sources.push_back(path);
    if (contents->cut)
      run.warnings.push_back(fmt::format("{} ends in a damaged record; what precedes it is read", path));
    for (const ScalarEvent& event : contents->scalars) builders.add(event);
    if (const auto attempt = attempt_of(*contents)) attempts.push_back(*attempt);
  }
  add_curves(run.curves, builders.curves.build());
  add_curves(run.memory_mb, builders.memory.build());
  for (const auto& [module, times] : builders.modules) run.modules[module] = times.build();
  if (run.attempts.empty()) run.attempts = std::move(attempts);
}

void add_log(const RunFiles& files, RunRecord& run) {
  std::vector<std::vector<LogContents>> logs;
  for (const std::string& path : files.logs) {
    auto starts = unless_unreadable(run, [&] { return read_starts(path); });
    if (!starts) continue;
    const auto tells_of_run = [](const LogContents& start) {
      return start.iteration_lines > 0 || !start.ended_by.empty();
    };
    if (std::ranges::any_of(*starts, tells_of_run)) run.sources.push_back(path);
    logs.push_back(*std::move(starts));
  }
  if (logs.empty()) return;
  LogContents all = merged(starts_of_all(std::move(logs)));
  run.layout = std::move(all.layout);
  run.failures = std::move(all.failures);
  add_curves(run.curves, std::move(all.curves));
  add_curves(run.memory_mb, std::move(all.memory_mb));
  if (run.modules.empty()) run.modules = std::move(all.modules);
  if (run.attempts.empty()) {
    run.attempts = std::move(all.attempts);
    run.skipped_count = all.skipped;
    run.nan_count = all.nans;
  }
  run.iterations = all.iterations;
  if (!run.ranks) run.ranks = all.ranks;
  run.unusable = all.unusable;
  run.checkpoints = std::move(all.checkpoints);
  run.end.text = all.ended_by;
}

double bytes_below(const std::string& folder) {
  double bytes = 0;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(folder, error)) {
    std::error_code unknown;
    if (entry.is_regular_file(unknown)) bytes += static_cast<double>(entry.file_size(unknown));
  }
  return bytes;
}

void add_checkpoints(const RunFiles& files, RunRecord& run) {
  std::map<std::int64_t, SavedCheckpoint> saved;
  for (const SavedCheckpoint& checkpoint : run.checkpoints) saved[checkpoint.iteration] = checkpoint;
  for (const std::string& root : files.checkpoint_roots)
    for (const std::int64_t iteration : iterations_in(root)) {
      SavedCheckpoint& checkpoint = saved[iteration];
      checkpoint.iteration = iteration;
      checkpoint.exists = true;
      if (checkpoint.bytes == 0) checkpoint.bytes = bytes_below(iteration_folder(root, iteration));
    }
  run.checkpoints.clear();
  for (const auto& [iteration, checkpoint] : saved) run.checkpoints.push_back(checkpoint);
}

void add_end(const RunFiles& files, RunRecord& run) {
  const std::int64_t done = last_iteration(run);
  if (!run.end.text.empty()) {
    run.end.state = RunEnd::State::Finished;
    return;
  }
  if (run.iterations && done >= *run.iterations) {
    run.end = {.state = RunEnd::State::Finished, .text = "all iterations done"};
    return;
  }
  run.end.text = files.logs.empty() ? "there is no log" : "the log has no end: the run still runs, or was killed";
  if (files.logs.empty()) return;
  std::vector<std::string> skipped;
  const auto diagnosis =
      unless_unreadable(run, [&] { return examine_logs(find_logs(files.logs), std::nullopt, skipped); });
  if (!diagnosis || !diagnosis->failed || diagnosis->cause == Cause::Unknown || diagnosis->cause == Cause::NotLaunched)
    return;
  const auto json = nlohmann::json::parse(to_json(*diagnosis));
  run.end = {.state = RunEnd::State::Failed, .text = json.at("cause"), .diagnosis = json};
}

void add_plan(const std::string& path, bool required, RunRecord& run) {
  if (path.empty()) return;
  std::ifstream file(path);
  const auto plan = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (plan.is_object()) run.prediction = plan;
  if (!compare_with_plan(run).empty()) return run.sources.push_back(path);
  run.prediction = nullptr;
  const std::string what = fmt::format("{} is not a plan of a run, or cannot be read", in_quotes(path));
  if (required)
    throw ConfigError({what, "--plan", "give what `braid plan simulate --json` or `braid plan memory --json` printed"});
  run.warnings.push_back(what);
}

void add_rates_per_gpu(RunRecord& run) {
  const auto all = run.curves.find("tokens_per_s");
  if (!run.ranks || all == run.curves.end() || run.curves.count("tokens_per_gpu") > 0) return;
  Curve& own = run.curves["tokens_per_gpu"];
  for (const CurvePoint& point : all->second)
    own.push_back({point.iteration, point.value / static_cast<double>(*run.ranks)});
}

}  // namespace

RunRecord read_run(RunFiles files, const std::string& plan_path) {
  RunRecord run{.name = files.name, .folder = files.folder};
  add_recipe(files, run);
  add_metrics(files, run);
  add_rates_per_gpu(run);
  add_events(files, run);
  add_log(files, run);
  if (!run.iterations)
    if (const auto found = run.settings.find("train.iterations"); found != run.settings.end())
      run.iterations = parse_int64(found->second);
  add_rates_per_gpu(run);
  add_checkpoints(files, run);
  add_end(files, run);
  add_plan(plan_path.empty() ? files.plan : plan_path, !plan_path.empty(), run);
  return run;
}

}  // namespace braid
