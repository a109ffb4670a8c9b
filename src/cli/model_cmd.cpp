// braid model: describes the models that can be trained, without building one.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "base/strings.h"
#include "cli/commands.h"
#include "models/describe.h"
#include "run/recipe.h"

namespace braid {
namespace {

struct DescribeOptions {
  std::string provider, topology;
  std::string dtype = "bfloat16";
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

// The encoder sizes of a list apply to all encoders, those of a recipe to the encoder they name.
ProviderLayout layout_from(const std::string& topology, const Provider& provider) {
  ProviderLayout layout;
  if (topology.find('=') != std::string::npos) {
    const Modules modules = parse_list(topology);
    layout.language = layout_sizes(modules.language);
    for (const EncoderConfig& encoder : provider.encoders)
      layout.encoders[encoder.name] = layout_sizes(modules.encoder);
  } else if (!topology.empty()) {
    const Recipe recipe = load_recipe(topology);
    for (const ModuleConfig& module : recipe.topology.modules)
      (module.kind == "encoder" ? layout.encoders[module.name] : layout.language) = layout_sizes(module);
  }
  return layout;
}

void describe_provider(const DescribeOptions& options) {
  std::error_code ignored;
  if (!contains(provider_names(), options.provider) && std::filesystem::exists(options.provider, ignored))
    throw ConfigError({fmt::format("'{}' is a file, not a model provider", options.provider), "command line",
                       fmt::format("give the model.provider of the recipe, and --topology {}", options.provider)});
  const Provider& chosen = provider(options.provider);
  const ModelDescription model = describe_model(chosen, layout_from(options.topology, chosen), options.dtype);
  if (options.json)
    fmt::print("{}\n", model_json(model));
  else
    fmt::print("{}", show_model(model));
}

}  // namespace

void add_model_command(CLI::App& app) {
  CLI::App* model = app.add_subcommand("model", "Describe the models that can be trained, without building one");
  model->require_subcommand(1);
  auto options = std::make_shared<DescribeOptions>();
  CLI::App* describe = model->add_subcommand(
      "describe", "Print every parameter of a model, how a layout splits it and what a rank holds");
  describe->add_option("provider", options->provider, fmt::format("one of {}", fmt::join(provider_names(), ", ")))
      ->required();
  describe->add_option("--topology", options->topology,
                       "a recipe file, or sizes like tp=2,ep=16,encoder.tp=2 (bare keys: the language module)");
  describe->add_option("--dtype", options->dtype, "dtype of the parameters: bfloat16, float32 or float64");
  describe->add_flag("--json", options->json, "print JSON, for programs");
  describe->callback([options] { describe_provider(*options); });
}

}  // namespace braid
