// What a checkpoint says of the run that saved it, and what its keys mean with and without that. No libtorch here.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/dist_checkpoint.h"
#include "resume/common_state.h"
#include "run/recipe.h"
#include "resume/stored_sets.h"

namespace braid {

struct KnownRun {
  std::optional<StoredRun> run{};  // nothing: there is no common.pt, or not one of a trainer's
  std::optional<Recipe> recipe{};  // Braid's own
  std::string why_no_recipe{};
};
KnownRun known_run(const DistCheckpoint& checkpoint);

// The sets of the recipe's model as they are on one rank, without stages.
std::vector<StoredSet> whole_sets(const Recipe& recipe, KeyScheme scheme);

// The naming that the checkpoint has keys of. Nemotron's may all be below "model.", which is then part of the prefixes.
std::vector<StoredSet> sets_in(const DistMetadata& metadata, const Recipe& recipe);

// State of an optimizer rather than of a model.
bool is_optimizer_key(std::string_view key);

// Keys that belong together, for people: a parameter set, the optimizer of a module, or how the key begins.
struct KeyGroup {
  std::string name{};
  std::int64_t tensors = 0, elements = 0, bytes = 0;
  std::set<StoredDtype> dtypes{};
};
std::vector<KeyGroup> key_groups(const DistMetadata& metadata, const std::optional<Recipe>& recipe);

// How keys begin in one naming and in the other. Without a recipe, those of a language model with RADIO.
using KeyRenames = std::vector<std::pair<std::string, std::string>>;
KeyRenames renames_to(KeyScheme scheme, const DistMetadata& metadata, const std::optional<Recipe>& recipe);
std::optional<std::string> renamed(const std::string& key, const KeyRenames& renames);  // nothing: none applies

}  // namespace braid
