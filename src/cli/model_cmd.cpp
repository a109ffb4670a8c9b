// braid model: describes the models that can be trained, without building one.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "base/dtype_names.h"
#include "base/strings.h"
#include "cli/commands.h"
#include "cli/start.h"
#include "models/describe.h"
#include "run/recipe.h"

namespace braid {
namespace {

struct DescribeOptions {
  std::string model, topology, dtype;  // a provider or a recipe file; an empty dtype is the recipe's, or bfloat16
  bool json = false;
};

struct Modules {
  ModuleConfig language{}, encoder{};
};

// The keys of a --topology list. Bare keys are the language module's; dp does not change what a rank holds.
std::map<std::string, int*> keys_of(Modules& modules) {
  ModuleConfig &language = modules.language, &encoder = modules.encoder;
  return {{"tp", &language.tp},        {"cp", &language.cp},        {"pp", &language.pp},
          {"dp", &language.dp},        {"ep", &language.ep},        {"expt_tp", &language.expt_tp},
          {"encoder.tp", &encoder.tp}, {"encoder.cp", &encoder.cp}, {"encoder.pp", &encoder.pp},
          {"encoder.dp", &encoder.dp}};
}

std::optional<Problem> apply(const std::string& item, const std::map<std::string, int*>& keys) {
  const std::size_t equals = std::min(item.find('='), item.size());
  const std::string key = item.substr(0, equals);
  const auto found = keys.find(key);
  if (found == keys.end()) {
    std::vector<std::string> names;
    for (const auto& [name, value] : keys) names.push_back(name);
    const auto guess = nearest(key, names);
    return Problem{fmt::format("there is no size '{}'", key), "--topology",
                   guess ? fmt::format("did you mean '{}'?", *guess) : fmt::format("use {}", fmt::join(names, ", "))};
  }
  const auto size = equals < item.size() ? parse_int(item.substr(equals + 1)) : std::nullopt;
  if (!size || *size < 1 || *size > kMaxWorldSize)
    return Problem{fmt::format("'{}' is not a size for {}", item, key), "--topology",
                   fmt::format("write {}=N with N from 1 to {}", key, kMaxWorldSize)};
  *found->second = *size;
  return std::nullopt;
}

Modules parse_list(const std::string& list) {
  Modules modules;
  const std::map<std::string, int*> keys = keys_of(modules);
  std::vector<Problem> problems;
  for (const std::string& item : split(list, ','))
    if (auto problem = apply(item, keys)) problems.push_back(std::move(*problem));
  for (const ModuleConfig* module : {&modules.language, &modules.encoder})
    if (grid_size(*module) > kMaxWorldSize)
      problems.push_back({fmt::format("'{}' makes a grid of more than {} ranks", list, kMaxWorldSize), "--topology",
                          "use smaller sizes"});
  if (!problems.empty()) throw ConfigError(std::move(problems));
  return modules;
}

ProviderLayout layout_of(const Recipe& recipe) {
  ProviderLayout layout;
  for (const ModuleConfig& module : recipe.topology.modules)
    (module.kind == "encoder" ? layout.encoders[module.name] : layout.language) = layout_sizes(module);
  return layout;
}

// The encoder sizes of a list apply to all encoders, those of a recipe to the encoder they name.
ProviderLayout layout_from(const std::string& topology, const Provider& provider) {
  if (topology.empty()) return {};
  if (topology.find('=') == std::string::npos) return layout_of(load_recipe(topology));
  const Modules modules = parse_list(topology);
  ProviderLayout layout = {.language = layout_sizes(modules.language)};
  for (const EncoderConfig& encoder : provider.encoders) layout.encoders[encoder.name] = layout_sizes(modules.encoder);
  return layout;
}

// The recipe's model without the encoders that its topology leaves out.
Provider trained_model(const Recipe& recipe) {
  Provider model = recipe.model.model;
  const ProviderLayout layout = layout_of(recipe);
  std::erase_if(model.encoders, [&](const EncoderConfig& encoder) { return !layout.encoders.contains(encoder.name); });
  return model;
}

bool is_recipe(const std::string& name) {
  std::error_code ignored;
  if (contains(provider_names(), name)) return false;
  return name.find('/') != name.npos || name.ends_with(".yaml") || std::filesystem::exists(name, ignored);
}

void describe_named(const DescribeOptions& options, const Call& call) {
  Provider model;
  ProviderLayout layout;
  std::string dtype = "bfloat16";
  if (is_recipe(options.model)) {
    const Recipe recipe = read_recipe_call(options.model, call.arguments).recipe;
    model = trained_model(recipe);
    layout = layout_of(recipe);
    dtype = recipe.model.dtype;
  } else {
    model = provider(options.model);
    if (!parse_overrides(call.arguments, call.option_names).empty())
      throw ConfigError(
          {fmt::format("{} changes a recipe, but '{}' is a provider", call.arguments.front(), options.model),
           "command line", "give a recipe file, or leave the flag out"});
  }
  if (!options.topology.empty()) layout = layout_from(options.topology, model);
  if (!options.dtype.empty()) dtype = full_dtype_name(options.dtype);
  const ModelDescription described = describe_model(model, layout, dtype);
  if (options.json)
    fmt::print("{}\n", model_json(described));
  else
    fmt::print("{}", show_model(described));
}

}  // namespace

Command model_command() {
  const auto o = std::make_shared<DescribeOptions>();
  Command describe = {
      .name = "describe",
      .help = "Print every parameter of a model, how a layout splits it and what a rank holds",
      .options = {{"model", &o->model,
                   fmt::format("a recipe file, whose own model is counted, or one of {}",
                               fmt::join(provider_names(), ", ")),
                   kRequired},
                  {"--topology", &o->topology,
                   "a recipe file, or sizes like tp=2,ep=16,encoder.tp=2 (bare keys: the language module); default: "
                   "the recipe's"},
                  {"--dtype", &o->dtype,
                   "dtype of the parameters: bfloat16, float32 or float64; default: the recipe's"},
                  {"--json", &o->json, "print JSON, for programs"}},
      .extras = Extras::RecipeKeys,
      .run = [o](Call& call) { describe_named(*o, call); }};
  return {.name = "model",
          .help = "Describe the models that can be trained, without building one",
          .subcommands = {std::move(describe)}};
}

}  // namespace braid
