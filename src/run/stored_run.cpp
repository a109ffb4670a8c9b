#include "run/stored_run.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/error.h"
#include "base/strings.h"
#include "ckpt/file_names.h"
#include "models/providers.h"
#include "plan/param_spec.h"

namespace braid {
namespace {

struct Naming {
  const char *modules, *nemotron, *group;
};
constexpr std::array kNamings = {
    Naming{"language_model.module.", "language_model.", "language"},
    Naming{"modality_submodules.images.module.encoders.radio_encoder.radio_model.", "vision_model.", "images.encoder"},
    Naming{"modality_submodules.images.module.input_projections.0.", "vision_projection.", "images.projector"}};

// Key prefixes and their groups, longest prefix first.
std::vector<std::pair<std::string, std::string>> group_prefixes(const DistMetadata& metadata,
                                                                const std::optional<Recipe>& recipe) {
  std::vector<std::pair<std::string, std::string>> prefixes;
  if (recipe)
    for (const StoredSet& set : sets_in(metadata, *recipe)) prefixes.emplace_back(set.rule.prefix, set.name);
  const std::string root = nemotron_root(metadata);
  for (const Naming& naming : kNamings) {
    prefixes.emplace_back(naming.modules, naming.group);
    prefixes.emplace_back(root + naming.nemotron, naming.group);
  }
  std::stable_sort(prefixes.begin(), prefixes.end(),
                   [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
  return prefixes;
}

std::string group_of(const std::string& key, const std::vector<std::pair<std::string, std::string>>& prefixes) {
  const std::vector<std::string> words = split(key, '.');
  if (is_optimizer_key(key)) return words[0] == "mimo" ? fmt::format("optimizer of {}", words[1]) : "optimizer";
  for (const auto& [prefix, group] : prefixes)
    if (key.starts_with(prefix)) return group;
  return words[0];
}

bool is_audio(const Provider& provider, const std::string& name) {
  const EncoderConfig* encoder = find_encoder(provider, name);
  return encoder && std::holds_alternative<AudioConfig>(encoder->model);
}

}  // namespace

KnownRun known_run(const DistCheckpoint& checkpoint) {
  if (!checkpoint.has_common()) return {.why_no_recipe = "there is no common.pt"};
  KnownRun known;
  try {
    known.run = parse_common(checkpoint.common(), checkpoint.folder() + "/" + kCommonFile);
  } catch (const DataError& e) {
    return {.why_no_recipe = e.what()};
  }
  if (known.run->recipe.empty()) {
    known.why_no_recipe = "common.pt has no recipe: another program wrote it";
    return known;
  }
  try {
    // New training checks of a later version must not make the stored weights unreadable.
    known.recipe = parse_recipe(known.run->recipe, {}, RecipeChecks::TopologyOnly);
  } catch (const ConfigError& e) {
    known.why_no_recipe = fmt::format("the recipe in common.pt is not valid in this version: {}", e.what());
  }
  return known;
}

std::vector<StoredSet> whole_sets(const Recipe& recipe, KeyScheme scheme, const std::string& root) {
  Provider provider = recipe.model.model;
  if (auto* hybrid = std::get_if<HybridLmConfig>(&provider.language)) hybrid->pattern = layer_letters(*hybrid);
  TopologyConfig one_rank;
  for (const ModuleConfig& module : recipe.topology.modules)
    // Nemotron checkpoints have no audio encoders.
    if (scheme == KeyScheme::Modules || !is_audio(provider, module.name))
      one_rank.modules.push_back({.name = module.name, .kind = module.kind});
  one_rank.colocated = one_rank.modules.size() > 1;
  return stored_sets(provider, Topology(one_rank, Workload{}), scheme, root);
}

std::vector<StoredSet> sets_in(const DistMetadata& metadata, const Recipe& recipe) {
  std::vector<StoredSet> modules = whole_sets(recipe, KeyScheme::Modules);
  const bool any = std::any_of(modules.begin(), modules.end(),
                               [&](const StoredSet& set) { return has_key_with(metadata, set.rule.prefix); });
  if (any) return modules;
  return whole_sets(recipe, KeyScheme::Nemotron, nemotron_root(metadata));
}

bool is_optimizer_key(std::string_view key) { return contains(split(key.substr(0, key.find('/')), '.'), "optimizer"); }

std::vector<KeyGroup> key_groups(const DistMetadata& metadata, const std::optional<Recipe>& recipe) {
  const auto prefixes = group_prefixes(metadata, recipe);
  std::map<std::string, KeyGroup> groups;
  for (const auto& [key, tensor] : metadata.tensors) {
    const std::string name = group_of(key, prefixes);
    KeyGroup& group = groups[name];
    group.name = name;
    ++group.tensors;
    group.elements += num_elements(tensor.shape);
    group.bytes += bytes_of(tensor);
    group.dtypes.insert(tensor.dtype);
  }
  std::vector<KeyGroup> list;
  for (auto& [name, group] : groups) list.push_back(std::move(group));
  std::stable_partition(list.begin(), list.end(),
                        [](const KeyGroup& group) { return !group.name.starts_with("optimizer"); });
  return list;
}

KeyRenames renames_to(KeyScheme scheme, const DistMetadata& metadata, const std::optional<Recipe>& recipe) {
  KeyRenames to_nemotron;
  const std::string root = scheme == KeyScheme::Modules ? nemotron_root(metadata) : "";
  if (recipe) {
    std::map<std::string, std::string> modules;
    for (const StoredSet& set : whole_sets(*recipe, KeyScheme::Modules)) modules[set.name] = set.rule.prefix;
    for (const StoredSet& set : whole_sets(*recipe, KeyScheme::Nemotron, root))
      to_nemotron.emplace_back(modules.at(set.name), set.rule.prefix);
  } else {
    for (const Naming& naming : kNamings) to_nemotron.emplace_back(naming.modules, root + naming.nemotron);
  }
  if (scheme == KeyScheme::Modules)
    for (auto& [from, to] : to_nemotron) std::swap(from, to);
  return to_nemotron;
}

std::optional<std::string> renamed(const std::string& key, const KeyRenames& renames) {
  for (const auto& [from, to] : renames)
    if (key.starts_with(from)) return to + key.substr(from.size());
  return std::nullopt;
}

}  // namespace braid
