#include "cli/run_start.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/strings.h"
#include "ckpt/checkpoint_folder.h"
#include "plan/show.h"

namespace braid {
namespace {

std::string recipe_file(const std::string& log_dir) { return log_dir + "/recipe.yaml"; }

std::string learning_rate_text(const LrScheduleConfig& schedule) {
  if (schedule.decay_style == "constant") return fmt::format("learning rate {}", schedule.lr);
  return fmt::format("learning rate {} -> {} ({})", schedule.lr, schedule.min_lr, schedule.decay_style);
}

std::string checkpoint_line(const CheckpointConfig& checkpoint) {
  std::vector<std::string> parts;
  if (!checkpoint.load.empty())
    parts.push_back(!find_iteration(checkpoint.load, checkpoint.load_fallback == "always")
                        ? fmt::format("starts from scratch, since {} has no checkpoint yet", checkpoint.load)
                    : checkpoint.finetune ? fmt::format("starts at iteration 0 with the weights of {}", checkpoint.load)
                                          : fmt::format("resumes from {}", checkpoint.load));
  if (!checkpoint.load_nemotron.empty()) parts.push_back(fmt::format("starts from {}", checkpoint.load_nemotron));
  if (!checkpoint.load_vision_from.empty())
    parts.push_back(fmt::format("encoder from {}", checkpoint.load_vision_from));
  if (!checkpoint.save.empty())
    parts.push_back(fmt::format("saves to {}{}", checkpoint.save,
                                checkpoint.save_interval ? fmt::format(" every {} and at the end",
                                                                       counted(*checkpoint.save_interval, "iteration"))
                                                         : " at the end"));
  return parts.empty() ? "" : fmt::format("braid: {}\n", fmt::join(parts, "; "));
}

}  // namespace

std::string run_start_text(const Recipe& recipe, const Topology& topology, const std::string& log_dir) {
  const TrainConfig& train = recipe.train;
  return fmt::format(
      "braid: {} in {}, {} of {}, {}, seed {}\n"
      "{}"
      "braid: {}: {}\n"
      "braid: the full recipe: {}\n",
      recipe.model.provider, recipe.model.dtype, counted(iterations_of(length_of(train)), "iteration"),
      counted(train.global_batch, "sample"), learning_rate_text(train.schedule), train.seed,
      checkpoint_line(recipe.checkpoint), counted(topology.world_size(), "rank"), topology_line(topology),
      log_dir.empty() ? "add --print-recipe" : recipe_file(log_dir));
}

void write_recipe(const Recipe& recipe, const std::string& log_dir) {
  std::error_code ignored;
  std::filesystem::create_directories(log_dir, ignored);
  std::ofstream file(recipe_file(log_dir));
  file << to_yaml(recipe);
  if (!file.flush())
    throw ConfigError({fmt::format("cannot write '{}': {}", recipe_file(log_dir), std::strerror(errno)), "--log-dir",
                       "give a folder that you can write to"});
}

}  // namespace braid
