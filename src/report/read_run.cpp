// Finds the files of runs by their names, and reads them.
#include "base/error.h"
#include "base/files.h"
#include "base/strings.h"
#include "ckpt/checkpoint_folder.h"
#include "cluster/doctor/report.h"
#include "log/log_files.h"
#include "report/report.h"

namespace braid {
namespace {

constexpr const char* kPlanFile = "plan.json";
constexpr const char* kRecipeFile = "recipe.yaml";

bool is_event_file(const fs::path& path) { return path.filename().string().find("tfevents") != std::string::npos; }

// Data sets and answers are lines of JSON, too. A run that was killed at its start leaves no complete line.
bool is_metrics_file(const fs::path& path) {
  if (path.extension() != ".jsonl") return false;
  std::ifstream file(path, std::ios::binary);
  std::string line;
  std::getline(file, line);
  return line.find("\"iteration\"") != std::string::npos || file.eof();
}

// The first of several recipes or plans counts.
void add_file(const fs::path& path, RunFiles& files) {
  static const std::vector<std::string> kLogEndings = {".log", ".txt", ".out", ".err", ".stdout", ".stderr"};
  const std::string name = path.filename().string(), ending = path.extension().string();
  if (is_event_file(path))
    files.events.push_back(path.string());
  else if (is_metrics_file(path))
    files.metrics.push_back(path.string());
  else if (name == kTracker)
    files.checkpoint_roots.push_back(path.parent_path().string());
  else if (name == kPlanFile && files.plan.empty())
    files.plan = path.string();
  else if (contains(kLogEndings, ending))
    files.logs.push_back(path.string());
  else if (ending == ".yaml" &&
           (files.recipe.empty() || (name == kRecipeFile && fs::path(files.recipe).filename() != kRecipeFile)))
    files.recipe = path.string();
}

struct Entries {
  std::set<fs::path> files{}, folders{};  // sorted: a file system gives them in any order
};

// Folders in which runs may have files. A link to a folder is not followed: it may lead back.
bool is_searched(const fs::directory_entry& entry) {
  std::error_code unknown;
  const std::string name = entry.path().filename().string();
  const bool is_of_a_checkpoint = iteration_of(name).has_value() || name.ends_with(".partial");
  return entry.is_directory(unknown) && !entry.is_symlink(unknown) && !is_of_a_checkpoint;
}

Entries entries_of(const fs::path& folder) {
  Entries entries;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code unknown;
    if (entry->is_regular_file(unknown))
      entries.files.insert(entry->path());
    else if (is_searched(*entry))
      entries.folders.insert(entry->path());
  }
  return entries;
}

void add_folder(const fs::path& folder, RunFiles& files) {
  const Entries entries = entries_of(folder);
  for (const fs::path& file : entries.files) add_file(file, files);
  for (const fs::path& below : entries.folders) add_folder(below, files);
}

RunFiles files_below(const fs::path& folder) {
  RunFiles files{.name = folder.string(), .folder = folder.string()};
  add_folder(folder, files);
  return files;
}

bool has_nothing(const RunFiles& files) {
  return files.metrics.empty() && files.events.empty() && files.logs.empty() && files.checkpoint_roots.empty();
}

// The files beside `path` that have its name with another ending.
RunFiles files_of_job(const fs::path& path) {
  RunFiles files{.name = fs::path(path).replace_extension().string(), .folder = path.parent_path().string()};
  for (const char* ending : {".jsonl", ".log", ".out", ".err", ".yaml"})
    if (fs::path beside = fs::path(path).replace_extension(ending); fs::is_regular_file(beside))
      add_file(beside, files);
  if (const fs::path plan = path.parent_path() / kPlanFile; fs::is_regular_file(plan)) files.plan = plan.string();
  if (has_nothing(files)) add_file(path, files);
  return files;
}

// One run for each metrics file, or one run if there are not several.
std::vector<RunFiles> jobs_or_one(RunFiles files) {
  const auto jobs = vector_of<RunFiles>(files.metrics, files_of_job);
  if (jobs.size() > 1) return jobs;
  for (auto* list : {&files.metrics, &files.events, &files.logs, &files.checkpoint_roots}) std::ranges::sort(*list);
  return {std::move(files)};
}

std::vector<RunFiles> runs_in_folder(const fs::path& folder) {
  RunFiles all = files_below(folder);
  std::set<fs::path> metrics_folders;
  for (const std::string& file : all.metrics) metrics_folders.insert(fs::path(file).parent_path());
  if (metrics_folders.size() < 2) return jobs_or_one(std::move(all));
  const Entries entries = entries_of(folder);
  RunFiles own{.name = folder.string(), .folder = folder.string()};
  for (const fs::path& file : entries.files) add_file(file, own);
  const bool is_run = !own.metrics.empty();
  std::vector<RunFiles> runs;
  for (const fs::path& below : entries.folders) {
    const RunFiles files = files_below(below);
    if (is_run && files.metrics.empty())
      add_folder(below, own);  // its logs or checkpoints
    else if (!has_nothing(files))
      std::ranges::move(runs_in_folder(below), std::back_inserter(runs));
  }
  if (!has_nothing(own)) std::ranges::move(jobs_or_one(std::move(own)), std::inserter(runs, runs.begin()));
  return runs;
}

RunFiles file_alone(const fs::path& path) {
  RunFiles files{.name = path.string(), .folder = path.parent_path().string()};
  add_file(path, files);
  return files;
}

std::vector<RunFiles> runs_at(const std::string& path, FileMeans file_means) {
  const fs::path place = without_end_slash(path);
  const bool in_folder = is_folder(place);
  if (!in_folder && !is_file(place))
    throw ConfigError({fmt::format("{} does not exist", in_quotes(path)), "command line",
                       "give the folder of a run's files, e.g. that of --log-dir"});
  std::vector<RunFiles> runs = in_folder                         ? runs_in_folder(place)
                               : file_means == FileMeans::Itself ? std::vector{file_alone(place)}
                                                                 : std::vector{files_of_job(place)};
  if (!has_nothing(runs.front())) return runs;
  if (in_folder)
    throw ConfigError(
        {fmt::format("{} has no file of a run", in_quotes(place.string())), "command line",
         "give a folder with a metrics file (*.jsonl), event files, a log (*.log, *.out) or checkpoints"});
  throw ConfigError({fmt::format("{} is not a file of a run", in_quotes(path)), "command line",
                     "give a metrics file (*.jsonl), an event file, a log (*.log, *.out) or a run's folder"});
}

std::string last_parts(const std::string& path, std::size_t count) {
  std::vector<std::string> parts = split(path, '/');
  if (parts.size() > count) parts.erase(parts.begin(), parts.end() - static_cast<std::ptrdiff_t>(count));
  return joined(parts, "/");
}

void shorten_names(std::vector<RunFiles>& runs) {
  for (RunFiles& run : runs) run.name = fs::absolute(run.name).lexically_normal().string();
  for (std::size_t count = 1;; ++count) {
    std::set<std::string> names;
    bool are_whole = true;
    for (const RunFiles& run : runs) {
      names.insert(last_parts(run.name, count));
      are_whole = are_whole && names.contains(run.name);
    }
    if (names.size() < runs.size() && !are_whole) continue;
    for (RunFiles& run : runs) run.name = last_parts(run.name, count);
    return;
  }
}

std::string setting_of(const RunRecord& run, const char* key) { return value_in(run.settings, key).value_or(""); }

void add_recipe(RunFiles& files, RunRecord& run) {
  if (files.recipe.empty()) return;
  const auto settings = read_settings(files.recipe);
  if (!settings) return run.warnings.push_back(fmt::format("{} is not YAML", files.recipe));
  run.sources.push_back(files.recipe);
  run.settings = *settings;
  run.ranks = ranks_of(*settings);
  run.model = setting_of(run, "model.provider");
  run.iterations = parse_int64(setting_of(run, "train.iterations"));
  std::error_code error;
  const std::string metrics = setting_of(run, "log.metrics_file"), save = setting_of(run, "checkpoint.save");
  if (files.metrics.empty() && is_file(metrics)) files.metrics.push_back(metrics);
  if (files.checkpoint_roots.empty() && is_folder(save)) files.checkpoint_roots.push_back(save);
  const std::string events = setting_of(run, "log.tensorboard_dir");
  if (files.events.empty() && is_folder(events))
    for (const auto& entry : fs::directory_iterator(events, error))
      if (is_event_file(entry.path())) files.events.push_back(entry.path().string());
  std::ranges::sort(files.events);
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

// Each curve comes from the first source that has it, and so do the starts, with what was skipped in them.
void add_source(RunRecord& run, RunRecord source) {
  // Whether a value is exact and what it stands for depends on the source that it comes from.
  std::erase_if(source.forms,
                [&](const auto& form) { return run.curves.contains(form.first) || run.others.contains(form.first); });
  run.forms.merge(std::move(source.forms));
  run.curves.merge(std::move(source.curves));
  run.others.merge(std::move(source.others));
  run.memory_mb.merge(std::move(source.memory_mb));
  if (run.modules.empty()) run.modules = std::move(source.modules);
  if (!run.attempts.empty()) return;
  run.attempts = std::move(source.attempts);
  run.skipped = std::move(source.skipped);
  run.skipped_count = source.skipped_count;
  run.nan_count = source.nan_count;
}

void add_metrics(const RunFiles& files, RunRecord& run) {
  for (const std::string& path : files.metrics) {
    auto contents = unless_unreadable(run, [&] { return read_metrics(path); });
    if (!contents) continue;
    if (contents->lines == 0) {
      run.warnings.push_back(fmt::format("{} has no line of an iteration", path));
      continue;
    }
    run.sources.push_back(path);
    if (contents->bad_lines > 0)
      run.warnings.push_back(
          fmt::format("{}: {} cut off or damaged, and not used", path,
                      counted(contents->bad_lines, "line") + (contents->bad_lines == 1 ? " is" : " are")));
    add_source(run, *std::move(contents));
  }
}

void add_events(const RunFiles& files, RunRecord& run) {
  std::vector<ScalarEvent> events;
  std::vector<Attempt> attempts;
  for (const std::string& path : files.events) {
    const auto contents = unless_unreadable(run, [&] { return read_events(path); });
    if (!contents) continue;
    run.sources.push_back(path);
    if (contents->cut)
      run.warnings.push_back(fmt::format("{} ends in a damaged record; what precedes it is read", path));
    std::optional<Attempt> attempt;  // a file is what one process wrote
    for (const ScalarEvent& event : contents->scalars) {
      events.push_back(event);
      if (event.tag != "lm loss") continue;
      if (!attempt) attempt = {.first = event.step, .began = event.wall_time, .first_is_known = false};
      attempt->last = event.step;
      attempt->ended = event.wall_time;
    }
    if (attempt) attempts.push_back(*attempt);
  }
  RunRecord source = record_of(events);
  source.attempts = std::move(attempts);
  add_source(run, std::move(source));
}

void add_log(const RunFiles& files, RunRecord& run) {
  std::vector<std::vector<RunRecord>> logs;
  for (const std::string& path : files.logs) {
    auto starts = unless_unreadable(run, [&] { return read_starts(path); });
    if (!starts) continue;
    const auto tells_of_run = [](const RunRecord& start) { return start.lines > 0 || !start.end.text.empty(); };
    if (std::ranges::any_of(*starts, tells_of_run)) run.sources.push_back(path);
    logs.push_back(*std::move(starts));
  }
  if (logs.empty()) return;
  RunRecord all = merged(starts_of_all(std::move(logs)));
  run.layout = std::move(all.layout);
  run.failures = std::move(all.failures);
  run.unusable = all.unusable;
  run.checkpoints = std::move(all.checkpoints);
  run.end.text = all.end.text;
  std::ranges::move(all.warnings, std::back_inserter(run.warnings));
  if (all.iterations) run.iterations = all.iterations;
  if (!run.ranks) run.ranks = all.ranks;
  add_source(run, std::move(all));
}

void add_checkpoints(const RunFiles& files, RunRecord& run) {
  std::map<std::int64_t, SavedCheckpoint> saved;
  for (const SavedCheckpoint& checkpoint : run.checkpoints) saved[checkpoint.iteration] = checkpoint;
  for (const std::string& root : files.checkpoint_roots)
    for (const std::int64_t iteration : iterations_in(root)) {
      SavedCheckpoint& checkpoint = saved[iteration];
      checkpoint.iteration = iteration;
      checkpoint.exists = true;
      if (checkpoint.bytes != 0) continue;
      std::error_code error;
      for (const auto& entry : fs::recursive_directory_iterator(iteration_folder(root, iteration), error)) {
        std::error_code unknown;
        if (entry.is_regular_file(unknown)) checkpoint.bytes += static_cast<double>(entry.file_size(unknown));
      }
    }
  run.checkpoints.clear();
  for (const auto& [iteration, checkpoint] : saved) run.checkpoints.push_back(checkpoint);
}

void add_end(const RunFiles& files, RunRecord& run) {
  using enum RunEnd::State;
  if (run.end.text.empty() && run.iterations && last_iteration(run) >= *run.iterations)
    run.end.text = "all iterations done";
  if (!run.end.text.empty()) {
    run.end.state = Finished;
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
  run.end = {.state = Failed, .text = json.at("cause"), .diagnosis = json};
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
  for (const auto& [iteration, value] : all->second) own[iteration] = value / static_cast<double>(*run.ranks);
}

}  // namespace

std::vector<RunFiles> find_runs(const std::vector<std::string>& paths, FileMeans file_means) {
  std::vector<RunFiles> runs;
  std::vector<Problem> problems;
  for (const std::string& path : paths) {
    try {
      for (RunFiles& run : runs_at(path, file_means)) runs.push_back(std::move(run));
    } catch (const ConfigError& error) {
      problems.insert(problems.end(), error.problems().begin(), error.problems().end());
    }
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
  shorten_names(runs);
  return runs;
}

RunRecord read_run(RunFiles files, const std::string& plan_path) {
  RunRecord run{.name = files.name, .folder = files.folder};
  add_recipe(files, run);
  add_metrics(files, run);
  add_rates_per_gpu(run);
  add_events(files, run);
  add_log(files, run);
  add_rates_per_gpu(run);
  add_checkpoints(files, run);
  add_end(files, run);
  add_plan(plan_path.empty() ? files.plan : plan_path, !plan_path.empty(), run);
  return run;
}

}  // namespace braid
