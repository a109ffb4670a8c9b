#include "models/describe.h"
#include <nlohmann/json.hpp>
#include "base/strings.h"

namespace braid {
namespace {

constexpr std::string_view kLayerPrefix = "decoder.layers.";

std::int64_t bytes_of(const std::string& dtype) {
  if (dtype == "bfloat16") return 2;
  if (dtype == "float32") return 4;
  if (dtype == "float64") return 8;
  throw ConfigError({fmt::format("unknown dtype '{}'", dtype), "", "use bfloat16, float32 or float64"});
}

// The first rank of a stage stands for all, which hold equally much.
ShardCoordinates first_place(const LayoutSizes& layout) {
  return {.tp_size = layout.tp, .ep_size = layout.ep, .expt_tp_size = layout.expt_tp};
}

std::string split_of(const ParamSpec& spec) {
  std::vector<std::string> parts;
  if (spec.expert) parts.push_back("ep dim 0");
  if (spec.tp_dim >= 0) parts.push_back(fmt::format("{} dim {}", spec.expert ? "expt_tp" : "tp", spec.tp_dim));
  if (spec.tp_blocks.size() > 1) parts.back() += fmt::format(" ({} blocks)", spec.tp_blocks.size());
  return parts.empty() ? "-" : fmt::format("{}", fmt::join(parts, ", "));
}

const std::map<char, std::string> kKindOfLetter = {
    {'M', "Mamba2"}, {'*', "attention"}, {'E', "mixture-of-experts"}, {'-', "MLP"}};

// The group of the layer's kind, or a last one for what is outside of layers.
ParamGroup& group_of(std::optional<int> layer, const std::vector<std::string>& kinds, std::vector<ParamGroup>& groups) {
  const std::string kind = layer ? kinds.at(*layer) : "";
  auto group = layer ? std::ranges::find(groups, kind, &ParamGroup::kind) : groups.end();
  if (!layer && !groups.empty() && groups.back().kind.empty()) --group;
  if (group == groups.end()) group = groups.insert(group, {.kind = kind, .layers = {}, .rows = {}});
  if (layer && (group->layers.empty() || group->layers.back() != *layer)) group->layers.push_back(*layer);
  return *group;
}

void add_row(const std::string& name, const ParamSpec& spec, const LayoutSizes& layout, std::vector<ParamRow>& rows) {
  auto row = std::ranges::find(rows, name, &ParamRow::name);
  if (row == rows.end())
    row = rows.insert(row, {.name = name,
                            .shape = spec.shape,
                            .shard = local_shape(spec, first_place(layout)),
                            .split = split_of(spec),
                            .stages = {},
                            .trainable = spec.trainable});
  BRAID_CHECK(row->shape == spec.shape, "{} has a different shape than in earlier layers", spec.name);
  row->elements += num_elements(spec);
  if (row->stages.empty() || row->stages.back() != spec.stage) row->stages.push_back(spec.stage);
}

// `kinds` has one entry per layer.
ModuleDescription describe_module(const std::string& name, const std::vector<std::string>& kinds,
                                  const LayoutSizes& layout, const std::vector<ParamSpec>& specs) {
  ModuleDescription module = {.name = name, .groups = {}};
  for (const ParamSpec& spec : specs) {
    (spec.trainable ? module.parameters : module.buffers) += num_elements(spec);
    std::string inside = spec.name;
    std::optional<int> layer;
    if (spec.name.starts_with(kLayerPrefix)) {
      const std::string rest = spec.name.substr(kLayerPrefix.size());
      const std::size_t dot = rest.find('.');
      layer = parse_int(rest.substr(0, dot));
      if (layer) inside = rest.substr(dot + 1);
    }
    add_row(inside, spec, layout, group_of(layer, kinds, module.groups).rows);
  }
  return module;
}

GridDescription describe_grid(const std::string& name, const LayoutSizes& layout, const std::vector<ParamSpec>& specs,
                              std::int64_t dtype_bytes) {
  GridDescription grid = {name, layout, std::vector<StageSize>(layout.pp)};
  for (const ParamSpec& spec : specs) {
    ParamSpec shard = spec;
    shard.shape = local_shape(spec, first_place(layout));
    StageSize& stage = grid.stages[spec.stage % layout.pp];
    stage.elements += num_elements(shard);
    stage.bytes += num_elements(shard) * (spec.trainable ? dtype_bytes : std::max<std::int64_t>(dtype_bytes, 4));
  }
  return grid;
}

std::int64_t active_elements(const LanguageConfig& config, const std::vector<ParamSpec>& specs) {
  const auto* hybrid = std::get_if<HybridLmConfig>(&config);
  std::int64_t active = 0;
  for (const ParamSpec& spec : specs)
    if (spec.trainable)
      active += spec.expert ? num_elements(spec) / hybrid->experts * hybrid->top_k : num_elements(spec);
  return active;
}

std::vector<std::string> transformers(int layers) { return std::vector<std::string>(layers, "transformer"); }

std::vector<std::string> layer_kinds(const LanguageConfig& config) {
  if (const auto* llama = std::get_if<LlamaConfig>(&config)) return transformers(llama->layers);
  return vector_of<std::string>(layer_letters(std::get<HybridLmConfig>(config)),
                                [&](const char letter) { return kKindOfLetter.at(letter); });
}

std::vector<std::string> layer_kinds(const EncoderModel& config) {
  return transformers(std::visit([](const auto& c) { return layers_of(c).layers; }, config));
}

void add_encoder(const EncoderConfig& encoder, const LayoutSizes& layout, std::int64_t dtype_bytes,
                 ModelDescription& model) {
  std::vector<ParamSpec> specs = declare_parameters(encoder.model, layout.stages());
  const std::vector<ParamSpec> projector = declare_parameters(encoder.projector, layout.stages());
  model.modules.push_back(describe_module(encoder.name + ".encoder", layer_kinds(encoder.model), layout, specs));
  model.modules.push_back(describe_module(encoder.name + ".projector", {}, layout, projector));
  specs.insert(specs.end(), projector.begin(), projector.end());
  model.grids.push_back(describe_grid(encoder.name, layout, specs, dtype_bytes));
}

void check(const Provider& provider, const ProviderLayout& layout) {
  Problems problems = validate_language(provider, layout.language, provider.name);
  for (const EncoderConfig& encoder : provider.encoders)
    append(problems, validate_encoder(provider, encoder, layout.of(encoder), provider.name));
  throw_if_any(std::move(problems));
}

}  // namespace

ModelDescription describe_model(const Provider& provider, const ProviderLayout& layout, const std::string& dtype) {
  const std::int64_t dtype_bytes = bytes_of(dtype);
  check(provider, layout);
  const std::vector<ParamSpec> language = declare_parameters(provider.language, layout.language.stages());
  ModelDescription model = {
      .provider = provider.name,
      .dtype = dtype,
      .modules = {describe_module("language", layer_kinds(provider.language), layout.language, language)},
      .grids = {describe_grid("language", layout.language, language, dtype_bytes)},
      .active_parameters = active_elements(provider.language, language)};
  for (const EncoderConfig& encoder : provider.encoders) add_encoder(encoder, layout.of(encoder), dtype_bytes, model);
  for (const ModuleDescription& module : model.modules) model.parameters += module.parameters;
  return model;
}

namespace {

using Row = std::vector<std::string>;

std::string with_commas(std::int64_t number) {
  std::string digits = fmt::format("{}", number);
  for (std::size_t end = digits.size(); end > 3;) digits.insert(end -= 3, ",");
  return digits;
}

// Rows under the first of them, with numbers aligned to the right in these columns.
std::string table_of(std::vector<Row> rows, std::initializer_list<std::size_t> numbers) {
  for (const std::size_t column : numbers) {
    std::size_t width = 0;
    for (const Row& row : rows) width = std::max(width, row[column].size());
    for (Row& row : rows) row[column] = fmt::format("{:>{}}", row[column], width);
  }
  return format_table(rows.front(), {rows.begin() + 1, rows.end()});
}

// A header, then every group's rows below its title; a title may be wider than the first column.
std::string table_of(const ModuleDescription& module) {
  std::vector<Row> rows = {{module.name, "shape", "split", "shard", "stage", "elements"}};
  for (const ParamGroup& group : module.groups)
    for (const ParamRow& row : group.rows)
      rows.push_back(
          {fmt::format("{:{}}{}{}", "", group.layers.empty() ? 2 : 4, row.name, row.trainable ? "" : " (buffer)"),
           fmt::format("{}", fmt::join(row.shape, "x")), row.split, fmt::format("{}", fmt::join(row.shard, "x")),
           fold_ranks(row.stages), with_commas(row.elements)});
  const std::vector<std::string> lines = split(table_of(std::move(rows), {5}), '\n');
  std::string text = lines[0] + '\n';
  std::size_t line = 1;
  for (const ParamGroup& group : module.groups) {
    if (!group.layers.empty())
      text += fmt::format("  {}: {}{{{}}}\n", counted(std::ssize(group.layers), group.kind + " layer"), kLayerPrefix,
                          fold_ranks(group.layers));
    for (std::size_t i = 0; i < group.rows.size(); ++i) text += lines[line++] + '\n';
  }
  return text;
}

std::string totals_of(const ModelDescription& model) {
  std::vector<Row> rows = {{"parameters", "", ""}};
  for (const ModuleDescription& module : model.modules)
    rows.push_back({"  " + module.name, with_commas(module.parameters),
                    module.buffers > 0 ? fmt::format("and {} in buffers", with_commas(module.buffers)) : ""});
  rows.push_back({"  total", with_commas(model.parameters), ""});
  rows.push_back({"  language, active per token", with_commas(model.active_parameters), ""});
  return table_of(std::move(rows), {1});
}

std::string sizes_of_ranks(const ModelDescription& model) {
  std::vector<Row> rows = {{"each rank holds", "stage", "elements", "bytes", ""}};
  for (const GridDescription& grid : model.grids) {
    const auto [least, most] = std::ranges::minmax_element(grid.stages, {}, &StageSize::bytes);
    for (auto stage = grid.stages.begin(); stage != grid.stages.end(); ++stage) {
      const char* note = least->bytes == most->bytes ? ""
                         : stage == least            ? " (least)"
                         : stage == most             ? " (most)"
                                                     : "";
      rows.push_back({"  " + grid.name, fmt::format("{}", stage - grid.stages.begin()), with_commas(stage->elements),
                      with_commas(stage->bytes), readable_bytes(stage->bytes) + note});
    }
  }
  return table_of(std::move(rows), {2, 3});
}

using Json = nlohmann::ordered_json;

Json json_of(const ModuleDescription& module) {
  Json json = {{"name", module.name}, {"parameters", module.parameters}, {"buffers", module.buffers}};
  for (const ParamGroup& group : module.groups)
    for (const ParamRow& row : group.rows)
      json["tensors"].push_back(
          {{"name", group.layers.empty() ? row.name : fmt::format("{}{{}}.{}", kLayerPrefix, row.name)},
           {"layers", group.layers},
           {"shape", row.shape},
           {"split", row.split},
           {"shard", row.shard},
           {"stages", row.stages},
           {"elements", row.elements},
           {"trainable", row.trainable}});
  return json;
}

Json json_of(const GridDescription& grid) {
  const LayoutSizes& layout = grid.layout;
  Json json = {
      {"name", grid.name},
      {"layout",
       {{"tp", layout.tp}, {"cp", layout.cp}, {"pp", layout.pp}, {"ep", layout.ep}, {"expt_tp", layout.expt_tp}}}};
  for (const StageSize& stage : grid.stages)
    json["stages"].push_back({{"elements_per_rank", stage.elements}, {"bytes_per_rank", stage.bytes}});
  return json;
}

}  // namespace

std::string show_model(const ModelDescription& model) {
  std::string text = fmt::format("{} in {}\n", model.provider, model.dtype);
  for (const auto& [name, layout, stages] : model.grids)
    text += fmt::format("  {:<9} tp={} cp={} pp={} ep={} expt_tp={}\n", name, layout.tp, layout.cp, layout.pp,
                        layout.ep, layout.expt_tp);
  for (const ModuleDescription& module : model.modules) text += '\n' + table_of(module);
  return text + '\n' + totals_of(model) + '\n' + sizes_of_ranks(model);
}

std::string model_json(const ModelDescription& model) {
  Json json = {{"provider", model.provider},
               {"dtype", model.dtype},
               {"parameters", model.parameters},
               {"active_language_parameters_per_token", model.active_parameters}};
  for (const ModuleDescription& module : model.modules) json["modules"].push_back(json_of(module));
  for (const GridDescription& grid : model.grids) json["grids"].push_back(json_of(grid));
  return json.dump();
}

}  // namespace braid
