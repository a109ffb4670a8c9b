// braid model: describes the models that can be trained, without building one.
#include "base/files.h"
#include "base/strings.h"
#include "cli/command.h"
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

// A --topology list. Bare keys are the language module's; dp does not change what a rank holds.
Modules parse_list(const std::string& list) {
  Modules modules;
  ModuleConfig &language = modules.language, &encoder = modules.encoder;
  const std::map<std::string, int*> sizes = {{"tp", &language.tp},        {"cp", &language.cp},
                                             {"pp", &language.pp},        {"dp", &language.dp},
                                             {"ep", &language.ep},        {"expt_tp", &language.expt_tp},
                                             {"encoder.tp", &encoder.tp}, {"encoder.cp", &encoder.cp},
                                             {"encoder.pp", &encoder.pp}, {"encoder.dp", &encoder.dp}};
  const auto names = vector_of<std::string>(sizes, [](const auto& size) { return size.first; });
  ProblemList problems;
  for (const std::string& item : split(list, ',')) {
    const std::string key = item.substr(0, item.find('='));
    const auto size = key.size() < item.size() ? parse_int(item.substr(key.size() + 1)) : std::nullopt;
    const auto guess = nearest(key, names);
    if (!sizes.contains(key))
      problems.add(fmt::format("there is no size '{}'", key), "--topology",
                   guess ? fmt::format("did you mean '{}'?", *guess) : fmt::format("use {}", fmt::join(names, ", ")));
    else if (!size || *size < 1 || *size > kMaxWorldSize)
      problems.add(fmt::format("'{}' is not a size for {}", item, key), "--topology",
                   fmt::format("write {}=N with N from 1 to {}", key, kMaxWorldSize));
    else
      *sizes.at(key) = *size;
  }
  for (const ModuleConfig* module : {&language, &encoder})
    if (grid_size(*module) > kMaxWorldSize)
      problems.add(fmt::format("'{}' makes a grid of more than {} ranks", list, kMaxWorldSize), "--topology",
                   "use smaller sizes");
  problems.throw_if_any();
  return modules;
}

ProviderLayout layout_of(const Recipe& recipe) {
  ProviderLayout layout;
  for (const ModuleConfig& module : recipe.topology.modules)
    (module.kind == ModuleKind::Encoder ? layout.encoders[module.name] : layout.language) = layout_sizes(module);
  return layout;
}

void describe_named(const DescribeOptions& options, const Call& call) {
  Provider model;
  ProviderLayout layout;
  std::string dtype = "bfloat16";
  const std::string& name = options.model;
  if (!contains(provider_names(), name) && (name.find('/') != name.npos || name.ends_with(".yaml") || is_there(name))) {
    const Recipe recipe = read_recipe_call(name, call.arguments).recipe;
    model = recipe.model.model;
    layout = layout_of(recipe);
    // The topology may leave encoders of the model out.
    std::erase_if(model.encoders, [&](const EncoderConfig& each) { return !layout.encoders.contains(each.name); });
    dtype = recipe.model.dtype;
  } else {
    model = provider(name);
    if (!parse_overrides(call.arguments, call.option_names).empty())
      throw misuse(fmt::format("{} changes a recipe, but '{}' is a provider", call.arguments.front(), name),
                   "give a recipe file, or leave the flag out");
  }
  // The encoder sizes of a list apply to all encoders, those of a recipe to the encoder they name.
  if (options.topology.find('=') != std::string::npos) {
    const Modules modules = parse_list(options.topology);
    layout = {.language = layout_sizes(modules.language)};
    for (const EncoderConfig& encoder : model.encoders) layout.encoders[encoder.name] = layout_sizes(modules.encoder);
  } else if (!options.topology.empty()) {
    layout = layout_of(load_recipe(options.topology));
  }
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
