#include "run/resume/save_folder.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "ckpt/checkpoint_folder.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const std::string& path) {
  const fs::path full = fs::weakly_canonical(fs::absolute(path));
  return full.has_filename() ? full : full.parent_path();
}

bool loads_in_place(const CheckpointConfig& config) {
  if (config.load.empty() || config.save.empty()) return false;
  const fs::path load = folder_of(config.load), save = folder_of(config.save);
  return load == save || (load.parent_path() == save && iteration_of(load.filename().string()));
}

std::string way_to_go_on(const CheckpointConfig& config) {
  std::vector<std::string> without;
  if (config.finetune) without.push_back("--finetune");
  if (!config.load_nemotron.empty()) without.push_back("--load-nemotron-checkpoint");
  if (!config.load_vision_from.empty()) without.push_back("--load-vision-from");
  const std::string with = loads_in_place(config) ? "" : fmt::format(" with --load {}", config.save);
  if (without.empty()) return "resume from them" + with;
  return fmt::format("resume from them{}{} without {}", with, with.empty() ? "" : " and", fmt::join(without, " and "));
}

}  // namespace

bool is_same_folder(const std::string& a, const std::string& b) { return folder_of(a) == folder_of(b); }

bool resumes_in_place(const CheckpointConfig& config) { return !config.finetune && loads_in_place(config); }

void check_save_folder(const CheckpointConfig& config) {
  std::error_code ignored;
  if (!config.save.empty() && fs::exists(fs::path(config.save) / ".metadata", ignored))
    throw ConfigError(
        {fmt::format("'{}' is itself a checkpoint", config.save), kSaveKey,
         fmt::format("save to its parent folder: --save {}", folder_of(config.save).parent_path().string())});
  if (config.save.empty() || config.overwrite || resumes_in_place(config)) return;
  const std::vector<std::int64_t> iterations = iterations_in(config.save);
  if (iterations.empty()) return;
  throw ConfigError(
      {fmt::format("'{}' has the checkpoints of another run, up to iteration {}, but this run does not resume from it",
                   config.save, iterations.back()),
       kSaveKey,
       way_to_go_on(config) +
           ", or save to another folder, or let this run replace them with --overwrite-checkpoints"});
}

}  // namespace braid
