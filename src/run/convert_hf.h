// Modules of a checkpoint from and to Hugging Face folders: the hybrid language model (nemotron_h) and RADIO.
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

// The module's model, as the recipe in common.pt describes it; of an encoder without its projector. ConfigError for
// models that Hugging Face folders are not written of.
WrittenModel write_hf_module(DistCheckpoint& checkpoint, const std::string& module, const std::string& hf_folder);

struct InitialCheckpoint {
  std::vector<std::string> notes{};  // where the folders' configurations differ from the recipe's, but no shape does
  std::size_t tensors = 0;
  std::int64_t bytes = 0;
};

// A checkpoint of iteration 0 of the recipe's model: modules that `hf_folders` names with the weights there, the others
// as training would start. ConfigError with all that differs when the weights do not fit the recipe.
InitialCheckpoint write_initial_checkpoint(const Recipe& recipe, const std::map<std::string, std::string>& hf_folders,
                                           const std::string& root, const ByteProgress& progress = {});

}  // namespace braid
