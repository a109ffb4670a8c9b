#include "train/start_checks.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>

#include "base/files.h"
#include "base/socket.h"
#include "base/strings.h"
#include "ckpt/checkpoint_folder.h"
#include "ckpt/file_names.h"
#include "train/resume_checks.h"
#include "train/save_folder.h"
#include "train/stored_sets.h"
#include "train/wanted_tensors.h"

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

// One folder that a recipe's key names, to be loaded.
class LoadCheck {
 public:
  // With a fallback, an older iteration will do where the newest is damaged or cannot be found.
  LoadCheck(const char* key, const std::string& path, bool falls_back)
      : key_(key), path_(without_end_slash(path)), falls_back_(falls_back) {}

  // The iteration's folder; nothing where there is no checkpoint, which is a problem with this fix, or none.
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
      return refuse(e.what(), key_ == kLoad ? there + ": take the newest that can be read with --load-fallback"
                                            : there + ": give the folder of one of them");
    }
    if (!fix_of_missing) return std::nullopt;
    if (fs::exists(path, ignored)) return refuse(fmt::format("there is no checkpoint in '{}'", path_), *fix_of_missing);
    const auto guess = nearest(path.filename().string(), folders_beside(path));
    return refuse(fmt::format("there is no folder '{}'", path_),
                  guess ? fmt::format("did you mean '{}'?", (path.parent_path() / *guess).string()) : *fix_of_missing);
  }

  // What the launcher can tell of the checkpoint without reading its tensors.
  void check(const std::string& folder, KeyScheme scheme, const Recipe& recipe, const Topology& topology) {
    const CheckpointConfig& config = recipe.checkpoint;
    const bool resumes = scheme == KeyScheme::Modules && !config.finetune;
    StoredRun stored;
    const auto checkpoint = opened(folder, resumes ? &stored : nullptr);
    if (!checkpoint) return;
    check_model(*checkpoint, scheme, recipe, topology);
    if (!problems_.empty() || !resumes || !config.load_scheduler) return;
    try {
      check_schedule(resolve(recipe.train.schedule, length_of(recipe.train)), stored.scheduler, config,
                     checkpoint->folder());
    } catch (const ConfigError& e) {
      problems_ = e.problems();
    }
  }

  Problems take() { return std::move(problems_); }

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

  // The checkpoint, or an older one where it is damaged and that will do; nothing when it is refused.
  std::unique_ptr<DistCheckpoint> opened(const std::string& folder, StoredRun* stored) {
    std::string error, ignored;
    if (auto checkpoint = try_open(folder, stored, error)) return checkpoint;
    const auto iteration = iteration_of(fs::path(folder).filename().string());
    if (key_ != kLoad || folder == path_ || !iteration) {
      refuse(error, fmt::format("`braid ckpt verify {}` says what is wrong with it", folder));
      return nullptr;
    }
    const auto older = falls_back_ ? newest_sound_before(*iteration, path_) : std::nullopt;
    auto checkpoint = older ? try_open(iteration_folder(path_, *older), stored, ignored) : nullptr;
    if (!checkpoint) refuse(error, falls_back_ ? kNoneIsSound : way_on_from(path_, *iteration));
    return checkpoint;
  }

  void check_model(const DistCheckpoint& checkpoint, KeyScheme scheme, const Recipe& recipe, const Topology& topology) {
    std::vector<StoredSet> sets = stored_sets(recipe.model.model, topology, scheme);
    if (scheme == KeyScheme::Nemotron)
      for (StoredSet& set : sets) set.rule.prefix = nemotron_root(checkpoint.metadata()) + set.rule.prefix;
    if (key_ == kVision) std::erase_if(sets, [](const StoredSet& set) { return !set.name.ends_with(".encoder"); });
    try {
      check_wanted(wanted_of(sets), checkpoint, "is it of another model, or of other sizes?");
    } catch (const DataError& e) {
      refuse(e.what(), fmt::format("the recipe's model is {}; `braid ckpt ls {}` lists what the checkpoint has",
                                   recipe.model.provider, checkpoint.folder()));
      return;
    }
    if (scheme == KeyScheme::Modules && recipe.checkpoint.load_optimizer && !recipe.checkpoint.finetune)
      check_optimizer(sets, checkpoint, recipe);
  }

  std::optional<std::string> refuse(std::string what, std::string fix) {
    problems_.push_back({std::move(what), key_, std::move(fix)});
    return std::nullopt;
  }

  std::optional<std::string> refuse_iteration(const fs::path& path) {
    std::error_code ignored;
    const std::string there = iterations_text(path.parent_path().empty() ? "." : path.parent_path().string());
    return refuse(fs::exists(path, ignored) ? fmt::format("'{}' has no .metadata: it is no complete checkpoint", path_)
                                            : fmt::format("there is no checkpoint '{}'", path_),
                  there.empty() ? kFolder : there);
  }

  void check_optimizer(const std::vector<StoredSet>& sets, const DistCheckpoint& checkpoint, const Recipe& recipe) {
    const std::vector<std::string> frozen = frozen_sets(recipe);
    for (const StoredSet& set : sets) {
      const DistMetadata& metadata = checkpoint.metadata();
      if (contains(frozen, set.name) || has_key_with(metadata, set.branch + "optimizer.") ||
          has_key_with(metadata, set.branch + "chained_0.optimizer."))
        continue;
      refuse(fmt::format("{} has no optimizer state of {}", checkpoint.folder(), set.name),
             "take the weights alone with --no-load-optim or --finetune");
      return;
    }
  }

  const std::string key_, path_;
  const bool falls_back_;
  Problems problems_;
};

Problem cannot_write(const WrittenPath& written, const std::string& why) {
  return {fmt::format("'{}' cannot be written: {}", written.path, why), written.key,
          written.kind == WrittenPath::File ? "give a file you may write to" : "give a folder you may write to"};
}

std::optional<std::string> lacks_rights(const WrittenPath& written) {
  std::error_code ignored;
  const fs::path path = fs::absolute(written.path, ignored).lexically_normal(), there = nearest_existing(path);
  const bool is_whole = there == path;
  if (written.kind == WrittenPath::File && is_whole) {
    if (fs::is_directory(there, ignored)) return "it is a folder";
    if (!fs::is_regular_file(there, ignored)) return "it is not a regular file";
    return access(there.c_str(), W_OK) == 0 ? std::nullopt : std::optional<std::string>(std::strerror(errno));
  }
  if (!fs::is_directory(there, ignored)) return fmt::format("'{}' is not a folder", there.string());
  if (access(there.c_str(), W_OK | X_OK) == 0) return std::nullopt;
  return is_whole ? std::strerror(errno) : fmt::format("'{}': {}", there.string(), std::strerror(errno));
}

// A folder is tried with a file that has no name: whatever ends this process, nothing of it stays. File systems that
// have no such files (NFS) are believed when they say who may write.
void try_folder(const fs::path& folder) {
  const Fd fd(::open(folder.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600));
  if (!fd && errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)
    throw_errno(fmt::format("cannot write to '{}'", folder.string()));
}

void try_to_write(const WrittenPath& written) {
  const fs::path path(written.path), folder = written.kind == WrittenPath::File ? path.parent_path() : path;
  if (!folder.empty()) fs::create_directories(folder);
  if (written.kind == WrittenPath::Folder) return try_folder(folder);
  const Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!fd) throw_errno(fmt::format("cannot open '{}'", written.path));
}

}  // namespace

std::vector<Problem> load_problems(const Recipe& recipe, const Topology& topology) {
  const CheckpointConfig& config = recipe.checkpoint;
  const auto check = [&](const char* key, const std::string& path, KeyScheme scheme, std::optional<std::string> fix) {
    LoadCheck load(key, path, std::string_view(key) == LoadCheck::kLoad && config.load_fallback == "always");
    try {
      if (const auto folder = load.find(fix)) load.check(*folder, scheme, recipe, topology);
    } catch (const fs::filesystem_error& e) {
      return Problems{{fmt::format("'{}' cannot be read: {}", e.path1().string(), e.code().message()), key,
                       "give a checkpoint that you may read"}};
    }
    return load.take();
  };
  const std::string folder = LoadCheck::kFolder;
  if (!config.load_nemotron.empty())
    return check(LoadCheck::kNemotron, config.load_nemotron, KeyScheme::Nemotron, folder);
  if (!config.load_vision_from.empty())
    return check(LoadCheck::kVision, config.load_vision_from, KeyScheme::Nemotron, folder);
  if (config.load.empty()) return {};
  std::optional<std::string> fix;  // none: a run that will resume itself starts afresh
  if (config.must_exist || config.finetune)
    fix = folder + ", or leave out --finetune and --exit-on-missing-checkpoint";
  else if (config.save.empty() || !is_same_folder(config.load, config.save))
    fix = folder + "; leave --load out to start afresh, or give --save the same folder for a run that resumes itself";
  return check(LoadCheck::kLoad, config.load, KeyScheme::Modules, fix);
}

std::vector<WrittenPath> written_paths(const Recipe& recipe) {
  std::vector<WrittenPath> paths = {{"checkpoint.save", recipe.checkpoint.save},
                                    {"log.tensorboard_dir", recipe.log.tensorboard_dir},
                                    {"log.metrics_file", recipe.log.metrics_file, WrittenPath::File},
                                    {"log.trace_dir", recipe.log.trace_dir}};
  std::erase_if(paths, [](const WrittenPath& written) { return written.path.empty(); });
  return paths;
}

std::vector<Problem> rights_problems(const std::vector<WrittenPath>& paths) {
  Problems problems;
  for (const WrittenPath& written : paths)
    if (const auto why = lacks_rights(written)) problems.push_back(cannot_write(written, *why));
  return problems;
}

std::vector<Problem> writing_problems(const std::vector<WrittenPath>& paths) {
  Problems problems;
  for (const WrittenPath& written : paths) try {
      try_to_write(written);
    } catch (const std::system_error& e) {
      problems.push_back(cannot_write(written, e.code().message()));
    }
  return problems;
}

}  // namespace braid
