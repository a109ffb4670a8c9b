// What a checkpoint stores about the run that saved it; its keys, with or without that. No libtorch.
#pragma once

#include "ckpt/checkpoint_tools.h"
#include "ckpt/dist_checkpoint.h"
#include "hf/model.h"
#include "run/recipe.h"
#include "run/resume/stored_state.h"

namespace braid {

struct KnownRun {
  std::optional<StoredRun> run{};  // empty: no common.pt, or not one written by a trainer
  std::optional<Recipe> recipe{};  // Braid's own
  std::string why_no_recipe{};
};
KnownRun known_run(const DistCheckpoint& checkpoint);

// Whether the key is optimizer state rather than model state.
bool is_optimizer_key(std::string_view key);

// Related keys, for display: a parameter set, a module's optimizer, or a common prefix.
struct KeyGroup {
  std::string name{};
  std::int64_t tensors = 0, elements = 0, bytes = 0;
  std::set<StoredDtype> dtypes{};
};
std::vector<KeyGroup> key_groups(const DistMetadata& metadata, const std::optional<Recipe>& recipe);

// Pairs of key prefixes in the two namings. Without a recipe, a language model with RADIO is assumed.
using KeyRenames = std::vector<std::pair<std::string, std::string>>;
KeyRenames renames_to(KeyScheme scheme, const DistMetadata& metadata, const std::optional<Recipe>& recipe);
std::optional<std::string> renamed(const std::string& key, const KeyRenames& renames);  // empty: no prefix matches

// --- modules of a checkpoint from and to Hugging Face folders: the hybrid language model and RADIO

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
