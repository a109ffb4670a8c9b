#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/files.h"
#include "base/strings.h"
#include "ckpt/checkpoint_folder.h"
#include "report/read_run.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPlanFile = "plan.json";
constexpr const char* kRecipeFile = "recipe.yaml";

bool is_log(const fs::path& path) {
  constexpr std::array kEndings = {".log", ".txt", ".out", ".err", ".stdout", ".stderr"};
  return std::find(kEndings.begin(), kEndings.end(), path.extension().string()) != kEndings.end();
}

bool is_event_file(const fs::path& path) { return path.filename().string().find("tfevents") != std::string::npos; }

// Data sets and answers of evaluations are lines of JSON, too. A file without a complete line may be that of a run that
// was killed at its start.
bool is_metrics_file(const fs::path& path) {
  if (path.extension() != ".jsonl") return false;
  std::ifstream file(path, std::ios::binary);
  std::string line;
  std::getline(file, line);
  return line.find("\"iteration\"") != std::string::npos || file.eof();
}

// The first of several recipes or plans counts.
void add_file(const fs::path& path, RunFiles& files) {
  const std::string name = path.filename().string(), ending = path.extension().string();
  if (is_event_file(path))
    files.events.push_back(path.string());
  else if (is_metrics_file(path))
    files.metrics.push_back(path.string());
  else if (name == kTracker)
    files.checkpoint_roots.push_back(path.parent_path().string());
  else if (name == kPlanFile && files.plan.empty())
    files.plan = path.string();
  else if (is_log(path))
    files.logs.push_back(path.string());
  else if (name == kRecipeFile && fs::path(files.recipe).filename() != kRecipeFile)
    files.recipe = path.string();
  else if (ending == ".yaml" && files.recipe.empty())
    files.recipe = path.string();
}

bool is_of_a_checkpoint(const fs::path& folder) {
  const std::string name = folder.filename().string();
  return iteration_of(name).has_value() || name.ends_with(".partial");
}

// Sorted: a file system gives them in any order.
struct Entries {
  std::vector<fs::path> files{}, folders{};
};

// A link to a folder is not followed: it may lead back.
Entries entries_of(const fs::path& folder) {
  Entries entries;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code unknown;
    if (entry->is_regular_file(unknown))
      entries.files.push_back(entry->path());
    else if (entry->is_directory(unknown) && !entry->is_symlink(unknown) && !is_of_a_checkpoint(entry->path()))
      entries.folders.push_back(entry->path());
  }
  std::sort(entries.files.begin(), entries.files.end());
  std::sort(entries.folders.begin(), entries.folders.end());
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

void sort_all(RunFiles& files) {
  for (auto* list : {&files.metrics, &files.events, &files.logs, &files.checkpoint_roots})
    std::sort(list->begin(), list->end());
}

// The files beside `path` that have its name with another ending.
RunFiles files_of_job(const fs::path& path) {
  RunFiles files{.folder = path.parent_path().string()};
  for (const char* ending : {".jsonl", ".log", ".out", ".err", ".yaml"})
    if (fs::path beside = fs::path(path).replace_extension(ending); fs::is_regular_file(beside))
      add_file(beside, files);
  if (const fs::path plan = path.parent_path() / kPlanFile; fs::is_regular_file(plan)) files.plan = plan.string();
  if (has_nothing(files)) add_file(path, files);
  files.name = fs::path(path).replace_extension().string();
  return files;
}

bool are_in_several_folders(const std::vector<std::string>& files) {
  std::set<fs::path> folders;
  for (const std::string& file : files) folders.insert(fs::path(file).parent_path());
  return folders.size() > 1;
}

// One run for each metrics file, or one run if there are not several.
std::vector<RunFiles> jobs_or_one(RunFiles files) {
  if (files.metrics.size() < 2) {
    sort_all(files);
    return {std::move(files)};
  }
  std::vector<RunFiles> jobs;
  for (const std::string& metrics : files.metrics) jobs.push_back(files_of_job(metrics));
  return jobs;
}

std::vector<RunFiles> runs_in_folder(const fs::path& folder) {
  RunFiles all = files_below(folder);
  if (!are_in_several_folders(all.metrics)) return jobs_or_one(std::move(all));
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
  if (has_nothing(own)) return runs;
  std::vector<RunFiles> all_runs = jobs_or_one(std::move(own));
  std::ranges::move(runs, std::back_inserter(all_runs));
  return all_runs;
}

std::vector<RunFiles> runs_at(const std::string& path) {
  std::error_code error;
  const fs::path place = without_end_slash(path);
  if (fs::is_directory(place, error)) {
    std::vector<RunFiles> runs = runs_in_folder(place);
    if (has_nothing(runs.front()))
      throw ConfigError(
          {fmt::format("{} has no file of a run", in_quotes(place.string())), "command line",
           "give a folder with a metrics file (*.jsonl), event files, a log (*.log, *.out) or checkpoints"});
    return runs;
  }
  if (fs::is_regular_file(place, error)) {
    RunFiles files = files_of_job(place);
    if (has_nothing(files))
      throw ConfigError({fmt::format("{} is not a file of a run", in_quotes(path)), "command line",
                         "give a metrics file (*.jsonl), an event file, a log (*.log, *.out) or a run's folder"});
    return {files};
  }
  throw ConfigError({fmt::format("{} does not exist", in_quotes(path)), "command line",
                     "give the folder of a run's files, e.g. that of --log-dir"});
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
    std::size_t longest = 0;
    for (const RunFiles& run : runs) {
      names.insert(last_parts(run.name, count));
      longest = std::max(longest, split(run.name, '/').size());
    }
    if (names.size() < runs.size() && count < longest) continue;
    for (RunFiles& run : runs) run.name = last_parts(run.name, count);
    return;
  }
}

}  // namespace

std::vector<RunFiles> find_runs(const std::vector<std::string>& paths) {
  std::vector<RunFiles> runs;
  std::vector<Problem> problems;
  for (const std::string& path : paths) {
    try {
      for (RunFiles& run : runs_at(path)) runs.push_back(std::move(run));
    } catch (const ConfigError& error) {
      problems.insert(problems.end(), error.problems().begin(), error.problems().end());
    }
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
  shorten_names(runs);
  return runs;
}

}  // namespace braid
