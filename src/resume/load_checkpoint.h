// What a run starts from: a checkpoint of any layout, loaded into this one.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "resume/checkpoint_config.h"
#include "resume/common_state.h"
#include "train/training.h"

namespace braid {

class World;

struct LoadedRun {
  RunPosition position{};
  std::optional<std::int64_t> seed{};       // that random numbers go on with; nothing: the recipe's
  std::string data_state{};                 // of the data set, or nothing: consumed_samples tells
  std::vector<std::string> missing_sets{};  // parameter sets that the checkpoint was not asked for
};

// Collective over the world. Every rank reads the parts of tensors that it holds, and nothing else. DataError when the
// checkpoint is damaged, lacks something that the model has, or has it in another shape; nothing is returned, and
// nothing changes, when there is no checkpoint to load. `say` is called on one rank.
std::optional<LoadedRun> load_checkpoint(const CheckpointConfig& config, Training& training, World& world,
                                         const std::function<void(const std::string& text)>& say);

}  // namespace braid
