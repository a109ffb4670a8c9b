#include "cli/data_call.h"

#include <nlohmann/json.hpp>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>

#include "base/strings.h"
#include "base/utf8.h"
#include "cli/recipe_call.h"
#include "data/text/tokenizer.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

bool has_any_section(const std::string& path, std::initializer_list<const char*> sections) {
  try {
    const YAML::Node root = YAML::LoadFile(path);
    return root.IsMap() && std::any_of(sections.begin(), sections.end(),
                                       [&](const char* section) { return root[section].IsDefined(); });
  } catch (const std::exception&) {
    return false;  // whoever reads it next says what is wrong
  }
}

// Metadatasets are YAML files as recipes are; only they have a section `splits`.
bool is_metadataset(const std::string& path) { return has_any_section(path, {"splits"}); }

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
  for (Problem& problem : sequence_length_problems(recipe.data.sequence_length.value_or(1)))
    problems.push_back(std::move(problem));
  if (!recipe.data.set.tokenizer.empty())
    for (Problem& problem : validate(recipe.data.set, "data")) problems.push_back(std::move(problem));
  if (!problems.empty()) throw ConfigError(std::move(problems));
  return recipe;
}

}  // namespace

DataCall read_data_call(const std::string& path, const std::vector<std::string>& flags, DataUse use) {
  std::error_code ignored;
  if (path != "-" && !fs::exists(path, ignored))
    throw ConfigError({fmt::format("{} does not exist", in_quotes(path)), "PATH",
                       "give a recipe, a data set's folder, a .jsonl file or a metadataset"});
  const bool is_alone = is_data_set(path);
  const Recipe recipe = is_alone ? recipe_for(path, flags) : read_recipe_call(path, flags).recipe;
  if (is_mock(recipe.data) || recipe.data.set.path.empty())
    throw ConfigError({"the recipe has no data set to look at", fmt::format("{}, data.path", path),
                       "set data.path, or give the path of a data set instead of a recipe"});
  DataCall call = {lane_set_options(recipe, Topology(recipe.topology, workload_of(recipe)), recipe.train.seed, use),
                   !recipe.data.set.tokenizer.empty()};
  const auto say = [](const std::string& text) { fmt::print(stderr, "braid: {}\n", visible_text(text)); };
  call.options.bad = std::make_shared<BadSamples>(recipe.data.set.max_bad_samples, say, say);
  if (is_alone && call.has_tokenizer && call.options.vision) {
    const std::string token = call.options.vision->token;
    if (const auto id = load_tokenizer(recipe.data.set.tokenizer).find(token)) {
      call.options.vision->token_id = *id;
    } else {
      say(fmt::format("the tokenizer has no token {}, so samples with pictures cannot be used", in_quotes(token)));
      call.options.vision.reset();
      call.options.media.clear();
    }
  }
  return call;
}

bool looks_like_recipe(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) && !is_metadataset(path) &&
         has_any_section(path, {"topology", "model", "data", "train"});
}

void require_tokenizer(const DataCall& call) {
  if (!call.has_tokenizer)
    throw ConfigError(
        {"a data set alone has no tokenizer", "command line",
         "give a recipe, or add --data.tokenizer PATH --data.prompt_format NAME --data.sequence_length N"});
}

}  // namespace braid
