#include "run/stored_run.h"
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/ranges.h>
#include "base/strings.h"
#include "ckpt/checkpoint_folder.h"
#include "ckpt/save_lock.h"
#include "nn/parameters.h"
#include "run/resume/checkpoint.h"

namespace braid {
namespace {

// The parameter sets of the recipe's model on a single rank, without pipeline stages.
std::vector<StoredSet> whole_sets(const Recipe& recipe, KeyScheme scheme, const std::string& root = "") {
  Provider provider = recipe.model.model;
  if (auto* hybrid = std::get_if<HybridLmConfig>(&provider.language)) hybrid->pattern = layer_letters(*hybrid);
  TopologyConfig one_rank;
  for (const ModuleConfig& module : recipe.topology.modules) {
    const EncoderConfig* encoder = find_encoder(provider, module.name);
    const bool is_audio = encoder && std::holds_alternative<AudioConfig>(encoder->model);
    if (scheme == KeyScheme::Modules || !is_audio)  // Nemotron checkpoints have no audio encoders
      one_rank.modules.push_back({.name = module.name, .kind = module.kind});
  }
  one_rank.colocated = one_rank.modules.size() > 1;
  return stored_sets(provider, Topology(one_rank, Workload{}), scheme, root);
}

// The sets in the checkpoint's naming. Nemotron's keys may all start with "model.", which is then part of the prefixes.
std::vector<StoredSet> sets_in(const DistMetadata& metadata, const Recipe& recipe) {
  std::vector<StoredSet> modules = whole_sets(recipe, KeyScheme::Modules);
  const auto has_keys = [&](const StoredSet& set) { return has_key_with(metadata, set.rule.prefix); };
  if (std::ranges::any_of(modules, has_keys)) return modules;
  return whole_sets(recipe, KeyScheme::Nemotron, nemotron_root(metadata));
}

struct Naming {
  const char *modules, *nemotron, *group;
};
constexpr std::array kNamings = {
    Naming{"language_model.module.", "language_model.", "language"},
    Naming{"modality_submodules.images.module.encoders.radio_encoder.radio_model.", "vision_model.", "images.encoder"},
    Naming{"modality_submodules.images.module.input_projections.0.", "vision_projection.", "images.projector"}};

const StoredSet& set_of_module(const std::vector<StoredSet>& sets, const std::string& module) {
  for (const StoredSet& set : sets)
    if (set.name == module || set.name == module + ".encoder") return set;
  std::vector<std::string> names;
  for (const StoredSet& set : sets)
    if (!set.name.ends_with(".projector")) names.push_back(set.name.substr(0, set.name.find('.')));
  throw ConfigError({fmt::format("the model has no module '{}'", module), "command line",
                     fmt::format("it has {}", fmt::join(names, ", "))});
}

// The configuration without pipeline stages, which belong to a run.
HfConfig config_of(const Provider& provider, const StoredSet& set) {
  std::optional<HfConfig> config;
  if (const auto* hybrid = std::get_if<HybridLmConfig>(&provider.language); hybrid && !set.name.ends_with(".encoder")) {
    HybridLmConfig whole = *hybrid;
    whole.pattern = layer_letters(whole);
    config = whole;
  }
  for (const EncoderConfig& encoder : provider.encoders)
    if (const auto* radio = std::get_if<RadioConfig>(&encoder.model); radio && set.name == encoder.name + ".encoder")
      config = *radio;
  if (config) return *config;
  throw ConfigError({fmt::format("the module '{}' of {} is neither the hybrid language model nor RADIO",
                                 set.name.substr(0, set.name.find('.')), provider.name),
                     "command line", "only these two can be read from or written to Hugging Face folders"});
}

// The slice of a whole parameter that a key stores, with as many dimensions as the stored tensor.
at::Tensor box_in(const at::Tensor& parameter, const KeyedBox& box) {
  const at::Tensor part = box_of(parameter, box.local_begin, box.size);
  return box.shape.size() > box.size.size() ? part.unsqueeze(0) : part;  // a layer of a stack
}

StoredDtype dtype_of(const ParamSpec& spec, const KeyRule& rule, const DistCheckpoint& checkpoint) {
  std::optional<StoredDtype> dtype;
  for (const KeyedShape& tensor : keyed_shapes(spec, rule)) {
    const StoredDtype found = checkpoint.metadata().tensors.at(tensor.key).dtype;
    if (dtype && *dtype != found)
      throw DataError(fmt::format("{}: '{}' is {}, but other tensors of the same parameter are {}", checkpoint.folder(),
                                  tensor.key, name_of(found), name_of(*dtype)));
    dtype = found;
  }
  return dtype.value();
}

// A configuration as text, line by line: "hidden: 64".
template <class Config>
std::vector<std::string> lines_of(Config config) {
  YamlWriter writer;
  describe(writer, config);
  std::vector<std::string> lines = split(writer.text(), '\n');
  for (std::string& line : lines) {
    line.erase(std::min(line.find('#'), line.size()));
    line.erase(line.find_last_not_of(' ') + 1);
  }
  return lines;
}

struct FieldDifference {
  std::string recipe, folder;  // "hidden: 64"
};

std::vector<FieldDifference> differences(const HfConfig& recipe, const HfConfig& folder) {
  std::vector<FieldDifference> fields;
  // These keys concern training; config.json does not have them.
  const std::vector<std::string> ignored = {"init_std", "aux_loss_coeff", "expert_bias_rate", "force_load_balancing"};
  const auto text = [](const HfConfig& config) {
    return std::visit([](const auto& c) { return lines_of(c); }, config);
  };
  const std::vector<std::string> ours = text(recipe), theirs = text(folder);
  for (std::size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i)
    if (ours[i] != theirs[i] && !contains(ignored, ours[i].substr(0, ours[i].find(':'))))
      fields.push_back({ours[i], theirs[i]});
  return fields;
}

// Refuses a folder whose model differs from the recipe's so that its weights do not fit.
void check_same_parameters(const StoredSet& set, const HfConfig& recipe, const HfConfig& folder_config,
                           const std::string& folder) {
  std::map<std::string, std::vector<std::int64_t>> theirs;
  for (const ParamSpec& spec : std::visit([](const auto& c) { return declare_parameters(c); }, folder_config))
    theirs[spec.name] = spec.shape;
  ProblemList problems;
  for (const ParamSpec& spec : set.specs) {
    const auto found = theirs.find(spec.name);
    if (found == theirs.end())
      problems.add(fmt::format("it has no {} of shape {}", spec.name, shape_text(spec.shape)), folder, "");
    else if (found->second != spec.shape)
      problems.add(
          fmt::format("{} is {}, but the recipe's is {}", spec.name, shape_text(found->second), shape_text(spec.shape)),
          folder, "");
    if (found != theirs.end()) theirs.erase(found);
  }
  for (const auto& [name, shape] : theirs)
    problems.add(fmt::format("the recipe's model has no {} of shape {}", name, shape_text(shape)), folder, "");
  if (problems.empty()) return;
  ProblemList all;
  for (const FieldDifference& field : differences(recipe, folder_config))
    all.add(fmt::format("the recipe has {}, the folder has {}", field.recipe, field.folder), folder,
            "change the recipe's model, or use another folder");
  for (Problem& problem : problems.take()) all.add(problem.what, problem.where, problem.fix);
  all.throw_if_any();
}

at::Tensor initial_value(const ParamSpec& spec, const StoredModel* model, const Recipe& recipe) {
  Parameters one({spec}, spec.stage, ShardCoordinates{}, scalar_type(recipe.model.dtype), at::kCPU);
  at::Tensor value = one.entries().front().value.detach();
  if (model)
    load(*model, spec, ShardCoordinates{}, value);
  else
    one.initialize(static_cast<std::uint64_t>(recipe.train.seed));
  return value;
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

bool is_optimizer_key(std::string_view key) { return contains(split(key.substr(0, key.find('/')), '.'), "optimizer"); }

std::vector<KeyGroup> key_groups(const DistMetadata& metadata, const std::optional<Recipe>& recipe) {
  std::vector<std::pair<std::string, std::string>> prefixes;  // of keys, and their groups; longest first
  if (recipe)
    for (const StoredSet& set : sets_in(metadata, *recipe)) prefixes.emplace_back(set.rule.prefix, set.name);
  const std::string root = nemotron_root(metadata);
  for (const Naming& naming : kNamings) {
    prefixes.emplace_back(naming.modules, naming.group);
    prefixes.emplace_back(root + naming.nemotron, naming.group);
  }
  std::ranges::stable_sort(prefixes, std::ranges::greater(), [](const auto& row) { return row.first.size(); });
  std::map<std::string, KeyGroup> groups;
  for (const auto& [key, tensor] : metadata.tensors) {
    const std::vector<std::string> words = split(key, '.');
    const auto is_of = [&key = key](const auto& row) { return key.starts_with(row.first); };
    const auto named = std::ranges::find_if(prefixes, is_of);
    std::string name = named == prefixes.end() ? words[0] : named->second;
    if (is_optimizer_key(key)) name = words[0] == "mimo" ? fmt::format("optimizer of {}", words[1]) : "optimizer";
    KeyGroup& group = groups[name];
    group.name = name;
    ++group.tensors;
    group.elements += num_elements(tensor.shape);
    group.bytes += bytes_of(tensor);
    group.dtypes.insert(tensor.dtype);
  }
  auto list = vector_of<KeyGroup>(groups, [](auto& named) { return std::move(named.second); });
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

WrittenModel write_hf_module(DistCheckpoint& checkpoint, const std::string& module, const std::string& hf_folder) {
  const KnownRun known = known_run(checkpoint);
  if (!known.recipe)
    throw ConfigError({fmt::format("{} does not describe its model: {}", checkpoint.folder(), known.why_no_recipe),
                       "--to-hf", "only checkpoints that contain Braid's recipe can be converted to Hugging Face"});
  const std::vector<StoredSet> sets = sets_in(checkpoint.metadata(), *known.recipe);
  const StoredSet& set = set_of_module(sets, module);
  WholeParameters parameters = {.config = config_of(known.recipe->model.model, set), .where = checkpoint.folder()};
  check_wanted(wanted_of({set}), checkpoint, "was it saved with another naming, or incompletely?");
  std::map<std::string, const ParamSpec*> specs;
  for (const ParamSpec& spec : set.specs) {
    specs[spec.name] = &spec;
    parameters.infos[spec.name] = {spec.name, dtype_of(spec, set.rule, checkpoint), spec.shape};
  }
  parameters.read = [&](const std::string& name) {
    const TensorInfo& info = parameters.infos.at(name);
    const at::Tensor whole = at::empty(info.shape, scalar_type(info.dtype));
    for (const KeyedBox& box : keyed_boxes(*specs.at(name), {}, set.rule))
      checkpoint.read(box.key, box.begin, box_in(whole, box));
    return whole;
  };
  return export_hf(parameters, hf_folder);
}

InitialCheckpoint write_initial_checkpoint(const Recipe& recipe, const std::map<std::string, std::string>& hf_folders,
                                           const std::string& root, const ByteProgress& progress) {
  const std::vector<StoredSet> sets = whole_sets(recipe, KeyScheme::Modules);
  InitialCheckpoint result;
  std::map<std::string, StoredModel> models;  // by set
  for (const auto& [module, folder] : hf_folders) {
    const StoredSet& set = set_of_module(sets, module);
    const HfConfig config = config_of(recipe.model.model, set);
    StoredModel model = open_hf_model(folder);
    if (model.config.index() != config.index())
      throw ConfigError({fmt::format("'{}' has a different kind of model than the module '{}'", folder, module),
                         "command line", "give nemotron_h for the language model, radio for images"});
    check_same_parameters(set, config, model.config, folder);
    for (const FieldDifference& field : differences(config, model.config))
      result.notes.push_back(
          fmt::format("{}: the recipe has {}, {} has {}", module, field.recipe, folder, field.folder));
    models.emplace(set.name, std::move(model));
  }
  check_new_iteration(root, 0);
  const SaveLock lock(root);
  begin_iteration(root, 0);
  std::int64_t done = 0, total = 0;
  const auto bytes_of = [&](const ParamSpec& spec) {
    return num_elements(spec) * static_cast<std::int64_t>(c10::elementSize(scalar_type(recipe.model.dtype)));
  };
  for (const StoredSet& set : sets)
    for (const ParamSpec& spec : set.specs) total += bytes_of(spec);
  const std::string partial = partial_folder(root, 0);
  DistWriter writer(partial, 0);
  for (const StoredSet& set : sets)
    for (const ParamSpec& spec : set.specs)
      for (const std::string& key : extra_state_keys(spec, {}, set.rule)) writer.add_object(key, pickle_none());
  for (const StoredSet& set : sets) {
    const auto model = models.find(set.name);
    for (const ParamSpec& spec : set.specs) {
      const at::Tensor value = initial_value(spec, model == models.end() ? nullptr : &model->second, recipe);
      for (const KeyedBox& box : keyed_boxes(spec, {}, set.rule))
        writer.add_tensor(box.key, box.shape, box.begin, box_in(value, box).contiguous());
      done += bytes_of(spec);
      if (progress) progress(done, total);
    }
  }
  writer.finish();
  hand_in(partial, 0, writer);
  result.tensors = writer.metadata().tensors.size();
  const CommonState start = {.schedule = resolve(recipe.train.schedule, length_of(recipe.train)),
                             .fully_reshardable = recipe.checkpoint.fully_reshardable,
                             .world_size = Topology(recipe.topology, workload_of(recipe)).world_size(),
                             .recipe = to_yaml(recipe)};
  result.bytes = publish(root, 0, 1, write_archive(to_pickle(start)), Saver::Guest);
  return result;
}

}  // namespace braid
