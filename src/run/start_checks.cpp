#include "run/start_checks.h"
#include <fmt/ranges.h>
#include "base/files.h"
#include "base/strings.h"
#include "ckpt/checkpoint_folder.h"
#include "run/resume/stored_state.h"

namespace braid {
namespace {

std::string iterations_text(const std::string& root) {
  std::vector<std::string> names;
  for (const std::int64_t iteration : iterations_in(root)) names.push_back(fmt::format("iter_{:07}", iteration));
  constexpr std::size_t kShown = 5;
  if (names.empty()) return "";
  const bool cut = names.size() > kShown;
  if (cut) names.erase(names.begin(), names.end() - kShown);
  return fmt::format("{} has {}{}", root, cut ? "..., " : "", fmt::join(names, ", "));
}

// The recipe's keys that cause these differences, separated by spaces.
std::string keys_behind(const std::vector<ScheduleDifference>& differences, const Recipe& recipe) {
  const LrScheduleConfig& schedule = recipe.train.schedule;
  const std::string length = recipe.train.samples ? "train.samples" : "train.iterations train.global_batch";
  const auto counted = [](const std::string& name, const auto& samples, const auto& iterations,
                          const std::string& otherwise) {
    if (samples) return fmt::format("train.{}_samples", name);
    return iterations ? fmt::format("train.{}_iterations train.global_batch", name) : otherwise;
  };
  const std::map<std::string, std::string> keys = {
      {"max_lr", "train.lr"},
      {"min_lr", "train.min_lr"},
      {"lr_decay_style", "train.decay_style"},
      {"lr_warmup_steps",
       counted("warmup", schedule.warmup_samples, schedule.warmup_iterations, "train.warmup_iterations")},
      {"lr_decay_steps", counted("decay", schedule.decay_samples, schedule.decay_iterations, length)},
      {"start_wd", "train.weight_decay"},
      {"end_wd", schedule.end_weight_decay ? "train.end_weight_decay" : "train.weight_decay"},
      {"wd_incr_style", "train.weight_decay_incr_style"},
      {"wd_incr_steps", length}};
  std::vector<std::string> found;
  for (const ScheduleDifference& difference : differences)
    for (const std::string& key : split(keys.at(difference.key), ' '))
      if (!contains(found, key)) found.push_back(key);
  return fmt::format("{}", fmt::join(found, " "));
}

constexpr const char *kLoad = "checkpoint.load", *kFolder = "give the folder of a checkpoint";

// A folder that a recipe key names; with a fallback, an older iteration replaces a damaged or missing newest one.
struct NamedFolder {
  std::string key, path;
  bool falls_back = false;

  [[noreturn]] void refuse(std::string what, std::string fix) const {
    throw ConfigError({std::move(what), key, std::move(fix)});
  }
};

// The iteration's folder; empty if there is no checkpoint, which is refused if `fix_of_missing` is given.
std::optional<std::string> find_folder(const NamedFolder& named, const std::optional<std::string>& fix_of_missing) {
  const fs::path path(named.path);
  std::error_code ignored;
  const bool exists = is_there(path);
  if (exists && !is_folder(path))
    named.refuse(fmt::format("'{}' is a file, not a folder of checkpoints", named.path), kFolder);
  if (path.filename().string().starts_with("iter_") && !is_there(path / kIndexFile)) {
    const std::string there = iterations_text(path.parent_path().empty() ? "." : path.parent_path().string());
    named.refuse(exists ? fmt::format("'{}' has no .metadata: the checkpoint is incomplete", named.path)
                        : fmt::format("there is no checkpoint '{}'", named.path),
                 there.empty() ? kFolder : there + ": give the folder of one of them");
  }
  try {
    if (const auto folder = find_iteration(named.path, named.falls_back)) return folder;
  } catch (const DataError& e) {
    const std::string there = iterations_text(named.path);
    named.refuse(e.what(), there.empty()        ? kFolder
                           : named.key == kLoad ? there + ": use the newest readable one with --load-fallback"
                                                : there + ": give the folder of one of them");
  }
  if (!fix_of_missing) return std::nullopt;
  if (exists) named.refuse(fmt::format("there is no checkpoint in '{}'", named.path), *fix_of_missing);
  std::vector<std::string> others;
  for (const auto& entry : fs::directory_iterator(path.has_parent_path() ? path.parent_path() : ".", ignored))
    if (entry.is_directory(ignored)) others.push_back(entry.path().filename().string());
  const auto guess = nearest(path.filename().string(), others);
  named.refuse(fmt::format("there is no folder '{}'", named.path),
               guess ? fmt::format("did you mean '{}'?", (path.parent_path() / *guess).string()) : *fix_of_missing);
}

std::unique_ptr<DistCheckpoint> try_open(const std::string& folder, StoredRun* stored, std::string& error) try {
  auto checkpoint = std::make_unique<DistCheckpoint>(folder);
  if (stored) *stored = read_run(*checkpoint);
  return checkpoint;
} catch (const std::exception& e) {
  error = e.what();
  return nullptr;
}

// The advice if one particular iteration was requested: a fallback applies only to a folder of iterations.
std::string way_on_without(const std::string& folder, const NamedFolder& named) {
  const std::string verify = fmt::format("`braid ckpt verify {}` shows what is wrong with it", folder);
  const fs::path path(folder);
  const std::string root = path.has_parent_path() ? path.parent_path().string() : ".";
  const auto iteration = iteration_of(path.filename().string());
  const auto older = named.key == kLoad && iteration ? newest_sound_before(*iteration, root) : std::nullopt;
  return older ? fmt::format("resume from an older one with --load {}; {}", iteration_folder(root, *older), verify)
               : verify;
}

// The checkpoint, or an older one if it is damaged and a fallback is allowed.
std::unique_ptr<DistCheckpoint> opened(const std::string& folder, const NamedFolder& named, StoredRun* stored) {
  std::string error, ignored;
  if (auto checkpoint = try_open(folder, stored, error)) return checkpoint;
  const auto iteration = iteration_of(fs::path(folder).filename().string());
  if (named.key != kLoad || folder == named.path || !iteration) named.refuse(error, way_on_without(folder, named));
  const auto older = named.falls_back ? newest_sound_before(*iteration, named.path) : std::nullopt;
  if (auto checkpoint = older ? try_open(iteration_folder(named.path, *older), stored, ignored) : nullptr)
    return checkpoint;
  named.refuse(error, named.falls_back ? kNoReadableCheckpoint : fallback_advice(named.path, *iteration));
}

void check_weights(const DistCheckpoint& checkpoint, const std::vector<StoredSet>& sets, const NamedFolder& named,
                   const Recipe& recipe) {
  try {
    check_wanted(wanted_of(sets), checkpoint, "is it a checkpoint of another model, or of other sizes?");
  } catch (const DataError& e) {
    named.refuse(e.what(), fmt::format("the recipe's model is {}; `braid ckpt ls {}` lists what the checkpoint has",
                                       recipe.model.provider, checkpoint.folder()));
  }
}

void check_optimizer(const DistCheckpoint& checkpoint, const std::vector<StoredSet>& sets, const NamedFolder& named,
                     const Recipe& recipe) {
  const DistMetadata& metadata = checkpoint.metadata();
  const std::vector<std::string> frozen = frozen_sets(recipe);
  for (const StoredSet& set : sets)
    if (!contains(frozen, set.name) && !has_key_with(metadata, set.branch + "optimizer.") &&
        !has_key_with(metadata, set.branch + "chained_0.optimizer."))
      named.refuse(fmt::format("{} has no optimizer state for {}", checkpoint.folder(), set.name),
                   "load only the weights with --no-load-optim or --finetune");
}

// The checks that the launcher can make without reading tensors.
void check_source(const std::string& folder, const NamedFolder& named, const WeightSource& source, const Recipe& recipe,
                  const Topology& topology) {
  const auto checkpoint = opened(folder, named, nullptr);
  check_weights(*checkpoint, sets_of(source, checkpoint->metadata(), recipe.model.model, topology), named, recipe);
}

// The same for a run that resumes. Finds the data of the stored run.
void check_stored_run(const std::string& folder, const NamedFolder& named, const Recipe& recipe,
                      const Topology& topology, StoredData& data) {
  const CheckpointConfig& config = recipe.checkpoint;
  StoredRun stored;
  const auto checkpoint = opened(folder, named, &stored);
  const std::vector<StoredSet> sets = stored_sets(recipe.model.model, topology);
  check_weights(*checkpoint, sets, named, recipe);
  if (config.load_optimizer) check_optimizer(*checkpoint, sets, named, recipe);
  data.positions = std::move(stored.data_positions);
  try {
    if (!data.positions.empty() && config.load_rng) data.seed = stored_seed(*checkpoint, sets.front());
  } catch (const DataError& e) {
    named.refuse(e.what(), way_on_without(checkpoint->folder(), named));
  }
  if (!config.load_scheduler) return;
  const LrSchedule own = resolve(recipe.train.schedule, length_of(recipe.train));
  try {
    check_schedule(own, stored.scheduler, config, checkpoint->folder());
  } catch (const ConfigError& e) {
    std::vector<Problem> problems = e.problems();
    if (config.scheduler == ResumeWith::Same)
      problems.front().where = keys_behind(differences(own, stored.scheduler), recipe);
    throw ConfigError(std::move(problems));
  }
}

// What to do if `load` has no checkpoint; nothing if the run may start without one.
std::optional<std::string> fix_of_missing(const CheckpointConfig& config, bool only_evaluates = false) {
  const std::string folder = kFolder;
  if (only_evaluates) return folder;
  if (config.must_exist || config.finetune)
    return folder + ", or leave out --finetune and --exit-on-missing-checkpoint";
  if (config.save.empty() || !is_same_folder(config.load, config.save))
    return folder + "; leave out --load to start from scratch, or give --save the same folder";
  return std::nullopt;
}

NamedFolder folder_to_resume_from(const CheckpointConfig& config) {
  return {kLoad, without_end_slash(config.load), config.load_fallback == LoadFallback::Always};
}

void check_what_is_loaded(const Recipe& recipe, const Topology& topology, bool only_evaluates, StoredData& data) {
  const CheckpointConfig& config = recipe.checkpoint;
  throw_if_any(init_problems(config));
  const NamedFolder load = folder_to_resume_from(config);
  const auto iteration = load.path.empty() ? std::nullopt : find_folder(load, fix_of_missing(config, only_evaluates));
  if (iteration && config.finetune)
    return check_source(*iteration, load, {WeightSource::Kind::Finetune, kLoad, load.path}, recipe, topology);
  if (iteration) return check_stored_run(*iteration, load, recipe, topology, data);
  for (const WeightSource& source : weight_sources(config)) {
    const NamedFolder named = {source.key, source.path};
    check_source(*find_folder(named, kFolder), named, source, recipe, topology);
  }
}

}  // namespace

LoadFindings check_load(const Recipe& recipe, const Topology& topology, bool only_evaluates) {
  LoadFindings found;
  try {
    check_what_is_loaded(recipe, topology, only_evaluates, found.data);
  } catch (const ConfigError& e) {
    found.problems = e.problems();
  } catch (const fs::filesystem_error& e) {
    found.problems = {{fmt::format("'{}' cannot be read: {}", e.path1().string(), e.code().message()), kLoad,
                       "give a checkpoint that you have permission to read"}};
  }
  return found;
}

RunStart find_start(const CheckpointConfig& config) {
  const std::vector<WeightSource> sources = weight_sources(config);
  const std::string weights =
      joined(vector_of<std::string>(
                 sources, [](const WeightSource& source) { return fmt::format("{} ({})", source.path, source.key); }),
             " and ");
  const NamedFolder load = folder_to_resume_from(config);
  if (load.path.empty()) return {.words = sources.empty() ? "" : "starts with the weights of " + weights};
  const auto folder = find_iteration(load.path, load.falls_back);
  if (folder && config.finetune) return {.words = fmt::format("starts at iteration 0 with the weights of {}", *folder)};
  if (folder) {
    std::string words = "resumes from " + *folder;
    if (const std::string lost = not_resumed(config); !lost.empty()) words += " without its " + lost;
    for (const WeightSource& source : sources)
      words += fmt::format(", and does not use {}={}{}", source.key, source.path,
                           is_there(source.path) ? "" : ", which no longer exists");
    return {.resumes = true, .words = words};
  }
  if (fix_of_missing(config)) return {.words = fmt::format("is refused, since {} has no checkpoint", load.path)};
  if (sources.empty()) return {.words = fmt::format("starts from scratch, since {} has no checkpoint yet", load.path)};
  return {.words = fmt::format("starts with the weights of {}, since {} has no complete checkpoint{}", weights,
                               load.path, has_interrupted_save(load.path) ? ", only an interrupted save" : " yet")};
}

}  // namespace braid
