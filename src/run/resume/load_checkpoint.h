// Loads a checkpoint saved in any layout into this run's layout.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "run/resume/checkpoint_config.h"
#include "run/resume/common_state.h"
#include "train/training.h"

namespace braid {

class World;

struct LoadedRun {
  RunPosition position{};
  std::optional<std::int64_t> seed{};         // of random numbers; empty: the recipe's
  std::vector<std::string> data_positions{};  // by lane; empty: none was stored
  std::vector<std::string> missing_sets{};    // parameter sets that were not loaded
};

// Collective over the world. Every rank reads only the tensor slices that it holds. DataError if the checkpoint is
// damaged, or if a tensor of the model is missing or has another shape. Returns nothing and changes nothing if there is
// no checkpoint to load. `say` is called on one rank.
std::optional<LoadedRun> load_checkpoint(const CheckpointConfig& config, Training& training, World& world,
                                         const std::function<void(const std::string& text)>& say);

}  // namespace braid
