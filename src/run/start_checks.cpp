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
  KeyScheme scheme = KeyScheme::Nemotron;
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

void check_model(const DistCheckpoint& checkpoint, const NamedFolder& named, const Recipe& recipe,
                 const Topology& topology) {
  const DistMetadata& metadata = checkpoint.metadata();
  const bool is_ours = named.scheme == KeyScheme::Modules;
  std::vector<StoredSet> sets =
      stored_sets(recipe.model.model, topology, named.scheme, is_ours ? "" : nemotron_root(metadata));
  if (!recipe.checkpoint.load_vision_from.empty()) std::erase_if(sets, std::not_fn(is_encoder));
  try {
    check_wanted(wanted_of(sets), checkpoint, "is it a checkpoint of another model, or of other sizes?");
  } catch (const DataError& e) {
    named.refuse(e.what(), fmt::format("the recipe's model is {}; `braid ckpt ls {}` lists what the checkpoint has",
                                       recipe.model.provider, checkpoint.folder()));
  }
  if (!is_ours || !recipe.checkpoint.load_optimizer || recipe.checkpoint.finetune) return;
  const std::vector<std::string> frozen = frozen_sets(recipe);
  for (const StoredSet& set : sets)
    if (!contains(frozen, set.name) && !has_key_with(metadata, set.branch + "optimizer.") &&
        !has_key_with(metadata, set.branch + "chained_0.optimizer."))
      named.refuse(fmt::format("{} has no optimizer state for {}", checkpoint.folder(), set.name),
                   "load only the weights with --no-load-optim or --finetune");
}

// The checks that the launcher can make without reading tensors. Finds the data of the stored run.
void check_folder(const std::string& folder, const NamedFolder& named, const Recipe& recipe, const Topology& topology,
                  StoredData& data) {
  const CheckpointConfig& config = recipe.checkpoint;
  const bool resumes = named.scheme == KeyScheme::Modules && !config.finetune;
  StoredRun stored;
  const auto checkpoint = opened(folder, named, resumes ? &stored : nullptr);
  check_model(*checkpoint, named, recipe, topology);
  if (!resumes) return;
  data.positions = std::move(stored.data_positions);
  try {
    if (!data.positions.empty() && config.load_rng)
      data.seed = stored_seed(*checkpoint, stored_sets(recipe.model.model, topology).front());
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

}  // namespace

LoadFindings check_load(const Recipe& recipe, const Topology& topology, bool only_evaluates) {
  const CheckpointConfig& config = recipe.checkpoint;
  NamedFolder named = {kLoad, config.load, KeyScheme::Modules, config.load_fallback == LoadFallback::Always};
  if (!config.load_vision_from.empty()) named = {"checkpoint.load_vision_from", config.load_vision_from};
  if (!config.load_nemotron.empty()) named = {"checkpoint.load_nemotron", config.load_nemotron};
  named.path = without_end_slash(named.path);
  if (named.path.empty()) return {};
  const std::string folder = kFolder;
  std::optional<std::string> fix;  // none: a run that resumes from its own folder starts from scratch
  if (only_evaluates || named.key != kLoad)
    fix = folder;
  else if (config.must_exist || config.finetune)
    fix = folder + ", or leave out --finetune and --exit-on-missing-checkpoint";
  else if (config.save.empty() || !is_same_folder(config.load, config.save))
    fix = folder + "; leave out --load to start from scratch, or give --save the same folder";
  LoadFindings found;
  try {
    if (const auto iteration = find_folder(named, fix)) check_folder(*iteration, named, recipe, topology, found.data);
  } catch (const ConfigError& e) {
    found.problems = e.problems();
  } catch (const fs::filesystem_error& e) {
    found.problems = {{fmt::format("'{}' cannot be read: {}", e.path1().string(), e.code().message()), named.key,
                       "give a checkpoint that you have permission to read"}};
  }
  return found;
}

}  // namespace braid
