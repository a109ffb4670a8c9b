// Converts modules of a checkpoint from and to Hugging Face folders: the hybrid language model (nemotron_h) and RADIO.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ckpt/dist_checkpoint.h"
#include "ckpt/verify.h"
#include "hf/model.h"
#include "run/recipe.h"

namespace braid {

// Writes the module's model, as the recipe in common.pt describes it; for an encoder, without its projector.
// ConfigError for models that cannot be written as a Hugging Face folder.
WrittenModel write_hf_module(DistCheckpoint& checkpoint, const std::string& module, const std::string& hf_folder);

struct InitialCheckpoint {
  std::vector<std::string> notes{};  // differences between the folders' and the recipe's configurations
  std::size_t tensors = 0;
  std::int64_t bytes = 0;
};

// Writes a checkpoint of iteration 0 of the recipe's model: modules in `hf_folders` with the weights from there, the
// others as training would initialize them. ConfigError that lists all differences if the weights do not fit the
// recipe; `notes` has the differences that change no shape.
InitialCheckpoint write_initial_checkpoint(const Recipe& recipe, const std::map<std::string, std::string>& hf_folders,
                                           const std::string& root, const ByteProgress& progress = {});

}  // namespace braid
