#include "cli/data_call.h"

#include <nlohmann/json.hpp>
#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <fstream>

#include "base/strings.h"
#include "cli/commands.h"
#include "run/written_paths.h"
#include "text/tokenizer.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

// Metadatasets are YAML files as recipes are; only they have a section `splits`.
bool is_metadataset(const std::string& path) {
  try {
    const YAML::Node root = YAML::LoadFile(path);
    return root.IsMap() && root["splits"].IsDefined();
  } catch (const YAML::Exception&) {
    return false;  // the recipe's reader says what is wrong
  }
}

bool is_data_set(const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return true;
  return fs::is_regular_file(path, ignored) && (path.ends_with(".jsonl") || is_metadataset(path));
}

Recipe recipe_for(const std::string& data_set, const std::vector<std::string>& flags) {
  const nlohmann::json quoted = data_set;
  const std::string text =
      fmt::format("topology: {{modules: {{images: {{kind: encoder}}, language: {{}}}}}}\ndata: {{path: {}}}\n",
                  quoted.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  Recipe recipe = parse_recipe(RecipeSource{data_set, text, parse_overrides(flags)}, RecipeChecks::TopologyOnly);
  std::vector<Problem> problems = validate(recipe.loader, "loader");
  if (!recipe.data.set.tokenizer.empty())
    for (Problem& problem : validate(recipe.data.set, "data")) problems.push_back(std::move(problem));
  if (!problems.empty()) throw ConfigError(std::move(problems));
  return recipe;
}

}  // namespace

DataCall read_data_call(const std::string& path, const std::vector<std::string>& flags, DataUse use) {
  const bool is_alone = is_data_set(path);
  const Recipe recipe = is_alone ? recipe_for(path, flags) : read_recipe_call(path, flags).recipe;
  if (is_mock(recipe.data) || recipe.data.set.path.empty())
    throw ConfigError({"the recipe has no data set to look at", fmt::format("{}, data.path", path),
                       "set data.path, or give the path of a data set instead of a recipe"});
  DataCall call = {lane_set_options(recipe, Topology(recipe.topology, workload_of(recipe)), recipe.train.seed, use),
                   !recipe.data.set.tokenizer.empty()};
  if (is_alone && call.has_tokenizer && call.options.vision)
    if (const auto id = load_tokenizer(recipe.data.set.tokenizer).find(call.options.vision->token))
      call.options.vision->token_id = *id;
  return call;
}

void check_output(const char* option, const std::string& file, const std::string& call_path,
                  const LaneSetOptions& options, const Blend& blend) {
  check_replaceable(option, file, call_path);
  const fs::path target(file);
  const auto is = [&](const fs::path& input) {
    std::error_code ignored;
    return fs::equivalent(target, input, ignored);
  };
  const auto is_shard_file = [&](const fs::path& input) {  // names first: asking the file system takes long
    return input.filename() == target.filename() && is(input);
  };
  std::error_code ignored;
  const fs::path tokenizer(options.data.tokenizer);
  const fs::path tokenizer_folder = fs::is_directory(tokenizer, ignored) ? tokenizer : tokenizer.parent_path();
  bool is_input = is(options.data.path) || is(tokenizer);
  if (!tokenizer.empty()) is_input |= is(tokenizer_folder / target.filename());
  for (const Leaf& leaf : blend.leaves) {
    is_input |= is(fs::path(leaf.data.path) / kMetaFolder / target.filename());
    for (const Shard& shard : leaf.data.shards)
      is_input |= is_shard_file(shard.path) || is_shard_file(index_path(shard.path));
  }
  if (is_input) refuse_to_replace(option, file);
}

void require_tokenizer(const DataCall& call) {
  if (!call.has_tokenizer)
    throw ConfigError(
        {"a data set alone has no tokenizer", "command line",
         "give a recipe, or add --data.tokenizer PATH --data.prompt_format NAME --data.sequence_length N"});
}

}  // namespace braid
