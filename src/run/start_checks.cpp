#include "run/start_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string_view>

#include "base/files.h"
#include "base/strings.h"
#include "ckpt/checkpoint_folder.h"
#include "ckpt/file_names.h"
#include "run/resume/checkpoint_config.h"
#include "run/resume/resume_checks.h"
#include "run/resume/stored_sets.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using Problems = std::vector<Problem>;

std::string iterations_text(const std::string& root) {
  std::vector<std::string> names;
  for (const std::int64_t iteration : iterations_in(root)) names.push_back(fmt::format("iter_{:07}", iteration));
  constexpr std::size_t kShown = 5;
  if (names.empty()) return "";
  const bool cut = names.size() > kShown;
  if (cut) names.erase(names.begin(), names.end() - kShown);
  return fmt::format("{} has {}{}", root, cut ? "..., " : "", fmt::join(names, ", "));
}

std::vector<std::string> folders_beside(const fs::path& path) {
  std::vector<std::string> names;
  std::error_code ignored;
  const fs::path parent = path.parent_path().empty() ? fs::path(".") : path.parent_path();
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, ignored))
    if (entry.is_directory(ignored)) names.push_back(entry.path().filename().string());
  return names;
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

// Checks one folder that a recipe key names for loading.
class LoadCheck {
 public:
  // With a fallback, an older iteration is used if the newest is damaged or missing.
  LoadCheck(const char* key, const std::string& path, bool falls_back)
      : key_(key), path_(without_end_slash(path)), falls_back_(falls_back) {}

  // The iteration's folder; empty if there is no checkpoint. That is a problem if `fix_of_missing` is given.
  std::optional<std::string> find(const std::optional<std::string>& fix_of_missing) {
    const fs::path path(path_);
    std::error_code ignored;
    if (fs::exists(path, ignored) && !fs::is_directory(path, ignored))
      return refuse(fmt::format("'{}' is a file, not a folder of checkpoints", path_), kFolder);
    if (path.filename().string().starts_with("iter_") && !fs::exists(path / kIndexFile, ignored))
      return refuse_iteration(path);
    try {
      if (const auto folder = find_iteration(path_, falls_back_)) return folder;
    } catch (const DataError& e) {
      const std::string there = iterations_text(path_);
      if (there.empty()) return refuse(e.what(), kFolder);
      return refuse(e.what(), key_ == kLoad ? there + ": use the newest readable one with --load-fallback"
                                            : there + ": give the folder of one of them");
    }
    if (!fix_of_missing) return std::nullopt;
    if (fs::exists(path, ignored)) return refuse(fmt::format("there is no checkpoint in '{}'", path_), *fix_of_missing);
    const auto guess = nearest(path.filename().string(), folders_beside(path));
    return refuse(fmt::format("there is no folder '{}'", path_),
                  guess ? fmt::format("did you mean '{}'?", (path.parent_path() / *guess).string()) : *fix_of_missing);
  }

  // The checks that the launcher can make without reading tensors.
  void check(const std::string& folder, KeyScheme scheme, const Recipe& recipe, const Topology& topology) {
    const CheckpointConfig& config = recipe.checkpoint;
    const bool resumes = scheme == KeyScheme::Modules && !config.finetune;
    StoredRun stored;
    const auto checkpoint = opened(folder, resumes ? &stored : nullptr);
    if (!checkpoint) return;
    check_model(*checkpoint, scheme, recipe, topology);
    if (!problems_.empty() || !resumes) return;
    find_data(*checkpoint, std::move(stored.data_positions), recipe, topology);
    if (!config.load_scheduler) return;
    const LrSchedule own = resolve(recipe.train.schedule, length_of(recipe.train));
    try {
      check_schedule(own, stored.scheduler, config, checkpoint->folder());
    } catch (const ConfigError& e) {
      std::vector<Problem> of_schedule = e.problems();
      if (config.scheduler == "same")
        of_schedule.front().where = keys_behind(differences(own, stored.scheduler), recipe);
      problems_.insert(problems_.end(), of_schedule.begin(), of_schedule.end());
    }
  }

  LoadFindings take() { return {std::move(problems_), std::move(data_)}; }

  static constexpr const char *kLoad = "checkpoint.load", *kNemotron = "checkpoint.load_nemotron",
                              *kVision = "checkpoint.load_vision_from", *kFolder = "give the folder of a checkpoint";

 private:
  static std::unique_ptr<DistCheckpoint> try_open(const std::string& folder, StoredRun* stored, std::string& error) {
    try {
      auto checkpoint = std::make_unique<DistCheckpoint>(folder);
      if (stored) *stored = read_run(*checkpoint);
      return checkpoint;
    } catch (const std::exception& e) {
      error = e.what();
      return nullptr;
    }
  }

  // The checkpoint, or an older one if it is damaged and a fallback is allowed; null if it is refused.
  std::unique_ptr<DistCheckpoint> opened(const std::string& folder, StoredRun* stored) {
    std::string error, ignored;
    if (auto checkpoint = try_open(folder, stored, error)) return checkpoint;
    const auto iteration = iteration_of(fs::path(folder).filename().string());
    if (key_ != kLoad || folder == path_ || !iteration) {
      refuse(error, way_on_without(folder));
      return nullptr;
    }
    const auto older = falls_back_ ? newest_sound_before(*iteration, path_) : std::nullopt;
    auto checkpoint = older ? try_open(iteration_folder(path_, *older), stored, ignored) : nullptr;
    if (!checkpoint) refuse(error, falls_back_ ? kNoReadableCheckpoint : fallback_advice(path_, *iteration));
    return checkpoint;
  }

  // The advice if one particular iteration was requested: a fallback applies only to a folder of iterations.
  std::string way_on_without(const std::string& folder) const {
    const std::string verify = fmt::format("`braid ckpt verify {}` shows what is wrong with it", folder);
    const fs::path path(folder);
    const std::string root = path.has_parent_path() ? path.parent_path().string() : ".";
    const auto iteration = iteration_of(path.filename().string());
    const auto older = key_ == kLoad && iteration ? newest_sound_before(*iteration, root) : std::nullopt;
    return older ? fmt::format("resume from an older one with --load {}; {}", iteration_folder(root, *older), verify)
                 : verify;
  }

  void check_model(const DistCheckpoint& checkpoint, KeyScheme scheme, const Recipe& recipe, const Topology& topology) {
    std::vector<StoredSet> sets =
        stored_sets(recipe.model.model, topology, scheme,
                    scheme == KeyScheme::Nemotron ? nemotron_root(checkpoint.metadata()) : "");
    if (key_ == kVision) std::erase_if(sets, std::not_fn(is_encoder));
    try {
      check_wanted(wanted_of(sets), checkpoint, "is it a checkpoint of another model, or of other sizes?");
    } catch (const DataError& e) {
      refuse(e.what(), fmt::format("the recipe's model is {}; `braid ckpt ls {}` lists what the checkpoint has",
                                   recipe.model.provider, checkpoint.folder()));
      return;
    }
    if (scheme == KeyScheme::Modules && recipe.checkpoint.load_optimizer && !recipe.checkpoint.finetune)
      check_optimizer(sets, checkpoint, recipe);
  }

  void find_data(DistCheckpoint& checkpoint, std::vector<std::string> positions, const Recipe& recipe,
                 const Topology& topology) {
    data_.positions = std::move(positions);
    if (data_.positions.empty() || !recipe.checkpoint.load_rng) return;
    try {
      data_.seed = stored_seed(checkpoint, stored_sets(recipe.model.model, topology).front());
    } catch (const DataError& e) {
      refuse(e.what(), way_on_without(checkpoint.folder()));
    }
  }

  std::optional<std::string> refuse(std::string what, std::string fix) {
    problems_.push_back({std::move(what), key_, std::move(fix)});
    return std::nullopt;
  }

  std::optional<std::string> refuse_iteration(const fs::path& path) {
    std::error_code ignored;
    const std::string there = iterations_text(path.parent_path().empty() ? "." : path.parent_path().string());
    return refuse(fs::exists(path, ignored) ? fmt::format("'{}' has no .metadata: the checkpoint is incomplete", path_)
                                            : fmt::format("there is no checkpoint '{}'", path_),
                  there.empty() ? kFolder : there + ": give the folder of one of them");
  }

  void check_optimizer(const std::vector<StoredSet>& sets, const DistCheckpoint& checkpoint, const Recipe& recipe) {
    const std::vector<std::string> frozen = frozen_sets(recipe);
    for (const StoredSet& set : sets) {
      const DistMetadata& metadata = checkpoint.metadata();
      if (contains(frozen, set.name) || has_key_with(metadata, set.branch + "optimizer.") ||
          has_key_with(metadata, set.branch + "chained_0.optimizer."))
        continue;
      refuse(fmt::format("{} has no optimizer state for {}", checkpoint.folder(), set.name),
             "load only the weights with --no-load-optim or --finetune");
      return;
    }
  }

  const std::string key_, path_;
  const bool falls_back_;
  Problems problems_;
  StoredData data_;
};

}  // namespace

LoadFindings check_load(const Recipe& recipe, const Topology& topology, bool only_evaluates) {
  const CheckpointConfig& config = recipe.checkpoint;
  const auto check = [&](const char* key, const std::string& path, KeyScheme scheme, std::optional<std::string> fix) {
    LoadCheck load(key, path, std::string_view(key) == LoadCheck::kLoad && config.load_fallback == "always");
    try {
      if (const auto folder = load.find(fix)) load.check(*folder, scheme, recipe, topology);
    } catch (const fs::filesystem_error& e) {
      return LoadFindings{.problems = {{fmt::format("'{}' cannot be read: {}", e.path1().string(), e.code().message()),
                                        key, "give a checkpoint that you have permission to read"}}};
    }
    return load.take();
  };
  const std::string folder = LoadCheck::kFolder;
  if (!config.load_nemotron.empty())
    return check(LoadCheck::kNemotron, config.load_nemotron, KeyScheme::Nemotron, folder);
  if (!config.load_vision_from.empty())
    return check(LoadCheck::kVision, config.load_vision_from, KeyScheme::Nemotron, folder);
  if (config.load.empty()) return {};
  std::optional<std::string> fix;  // none: a run that resumes from its own folder starts from scratch
  if (only_evaluates)
    fix = folder;
  else if (config.must_exist || config.finetune)
    fix = folder + ", or leave out --finetune and --exit-on-missing-checkpoint";
  else if (config.save.empty() || !is_same_folder(config.load, config.save))
    fix = folder + "; leave out --load to start from scratch, or give --save the same folder";
  return check(LoadCheck::kLoad, config.load, KeyScheme::Modules, fix);
}

}  // namespace braid
