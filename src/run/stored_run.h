// What a checkpoint says about the run that saved it, and what its keys mean with and without that. No libtorch here.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/dist_checkpoint.h"
#include "run/recipe.h"
#include "run/resume/common_state.h"
#include "run/resume/stored_sets.h"

namespace braid {

struct KnownRun {
  std::optional<StoredRun> run{};  // empty: no common.pt, or not one written by a trainer
  std::optional<Recipe> recipe{};  // Braid's own
  std::string why_no_recipe{};
};
KnownRun known_run(const DistCheckpoint& checkpoint);

// The sets of the recipe's model as on a single rank, without pipeline stages.
std::vector<StoredSet> whole_sets(const Recipe& recipe, KeyScheme scheme);

// In the naming that the checkpoint uses. Nemotron's keys may all start with "model.", which is then part of the
// prefixes.
std::vector<StoredSet> sets_in(const DistMetadata& metadata, const Recipe& recipe);

// Whether the key is optimizer state rather than model state.
bool is_optimizer_key(std::string_view key);

// Related keys, for display: a parameter set, a module's optimizer, or a common prefix.
struct KeyGroup {
  std::string name{};
  std::int64_t tensors = 0, elements = 0, bytes = 0;
  std::set<StoredDtype> dtypes{};
};
std::vector<KeyGroup> key_groups(const DistMetadata& metadata, const std::optional<Recipe>& recipe);

// Key prefixes in one naming and in the other. Without a recipe, those of a language model with RADIO.
using KeyRenames = std::vector<std::pair<std::string, std::string>>;
KeyRenames renames_to(KeyScheme scheme, const DistMetadata& metadata, const std::optional<Recipe>& recipe);
std::optional<std::string> renamed(const std::string& key, const KeyRenames& renames);  // empty: no prefix matches

}  // namespace braid
