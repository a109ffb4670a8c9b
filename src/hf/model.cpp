#include "hf/model.h"
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <nlohmann/json.hpp>
#include "base/files.h"

namespace braid {
namespace {

using Json = nlohmann::json;

const char* const kConfigFile = "config.json";
const char* const kBraidFile = "model.yaml";
const char* const kOriginalConfigFile = "hf_config.json";

// Configurations are a few kilobytes.
constexpr std::uintmax_t kMostTextBytes = 16 << 20;

std::string read_text(const fs::path& path, const std::string& fix) {
  return read_small_file(path, kMostTextBytes, fix);
}

void require_folder(const std::string& path) {
  if (!is_folder(path))
    throw ConfigError({fmt::format("'{}' is not a folder", path), "", "give the folder of a model"});
}

void make_empty_folder(const std::string& path) {
  std::error_code error;
  if (is_there(path) && !is_folder(path))
    throw ConfigError({fmt::format("'{}' exists and is not a folder", path), "", "choose another name"});
  if (is_folder(path) && !fs::is_empty(path, error))
    throw ConfigError({fmt::format("the folder '{}' is not empty", path), "", "choose another one, or empty it"});
  fs::create_directories(path, error);
  if (error)
    throw ConfigError({fmt::format("cannot create '{}': {}", path, error.message()), "", "choose another folder"});
}

// model.yaml: the kind of model, and its configuration under a key of that name.
struct ModelFile {
  std::string kind{};
  HfConfig config{};
};

void describe(Fields& fields, ModelFile& file) {
  fields.choice("kind", file.kind, {"nemotron_h", "radio"}, "architecture");
  if (file.kind == "radio" && !std::holds_alternative<RadioConfig>(file.config)) file.config = RadioConfig();
  if (!file.kind.empty()) std::visit([&](auto& c) { fields.section(file.kind.c_str(), c); }, file.config);
}

HfConfig read_model_file(const std::string& path) {
  ModelFile file;
  YamlReader reader = YamlReader::from_text(read_text(path, "give a folder that `braid ckpt import` wrote"), path);
  describe(reader, file);
  std::vector<Problem> problems = reader.finish();
  if (problems.empty() && file.kind.empty())
    problems.push_back({"the file lacks the kind of model", path + ", kind", "use nemotron_h or radio"});
  if (problems.empty())
    problems = std::visit([&](const auto& c) { return validate(c, LayoutSizes{}, path); }, file.config);
  throw_if_any(std::move(problems));
  return file.config;
}

std::string model_file_text(const HfConfig& config) {
  ModelFile file = {"radio", config};
  if (auto* language = std::get_if<HybridLmConfig>(&file.config)) {
    file.kind = "nemotron_h";
    language->pattern = layer_letters(*language);  // pipeline stages belong to a run, not to a model
  }
  YamlWriter writer;
  describe(writer, file);
  return writer.text();
}

std::vector<ParamSpec> parameters_of(const HfConfig& config) {
  return std::visit([](const auto& c) { return declare_parameters(c); }, config);
}

// RADIO's summary indices, if the source has them, in their stored shape.
void add_summary(const SafetensorsReader& source, const std::string& name, const RadioSpelling& spelling,
                 std::vector<ForeignTensor>& tensors) {
  const StoredTensor* stored = source.find(name);
  if (stored && stored->shape.size() == 1) tensors.push_back(radio_summary_tensor(spelling, stored->shape[0]));
}

// The tensors of this model in a Hugging Face folder with published names.
std::vector<ForeignTensor> hub_tensors(const WholeParameters& parameters) {
  if (const auto* language = std::get_if<HybridLmConfig>(&parameters.config)) return nemotron_h_tensors(*language, {});
  std::vector<ForeignTensor> tensors = radio_tensors(std::get<RadioConfig>(parameters.config), {});
  if (const auto summary = parameters.infos.find(kRadioSummary); summary != parameters.infos.end())
    tensors.push_back(radio_summary_tensor({}, summary->second.shape.at(0)));
  return tensors;
}

Json exported_config(const WholeParameters& parameters) {
  const Json original = parameters.hf_config.empty()
                            ? Json::object()
                            : parse_hf_json(parameters.hf_config, parameters.where + ": its original config.json");
  Json json = std::holds_alternative<HybridLmConfig>(parameters.config)
                  ? nemotron_h_json(std::get<HybridLmConfig>(parameters.config), original, parameters.where)
                  : radio_json(std::get<RadioConfig>(parameters.config), original, parameters.where);
  // Without a dtype transformers would load everything as float32.
  const char* const largest =
      std::holds_alternative<RadioConfig>(parameters.config) ? "embedder.weight" : "output_layer.weight";
  if (!json.contains("dtype") && !json.contains("torch_dtype"))
    json["dtype"] = names_of(parameters.infos.at(largest).dtype).torch;
  return json;
}

// A folder that import_hf() wrote.
StoredModel open_braid_model(const std::string& folder) {
  require_folder(folder);
  HfConfig config = read_model_file((fs::path(folder) / kBraidFile).string());
  SafetensorsReader source(folder);
  std::vector<ForeignTensor> tensors;
  for (const ParamSpec& spec : parameters_of(config))
    tensors.push_back(whole_parameter(spec.name, spec.shape, spec.name));
  if (std::holds_alternative<RadioConfig>(config)) add_summary(source, kRadioSummary, {.modules = true}, tensors);
  check_tensors(tensors, source, {});
  const fs::path original = fs::path(folder) / kOriginalConfigFile;
  return {std::move(config), std::move(source), by_param(tensors), fs::exists(original) ? read_text(original, "") : ""};
}

}  // namespace

StoredModel open_hf_model(const std::string& folder) {
  require_folder(folder);
  const std::string path = (fs::path(folder) / kConfigFile).string();
  const Json json = parse_hf_json(read_text(path, "a Hugging Face folder must have a config.json"), path);
  const Json type = json.value("model_type", Json());
  if (type != "nemotron_h" && type != "radio")
    throw ConfigError({fmt::format("model_type is {}", value_text(type)), path, "Braid reads nemotron_h and radio"});
  const bool is_radio = type == "radio";
  const std::optional<HybridLmConfig> language = is_radio ? std::nullopt : std::optional(nemotron_h_config(json, path));
  SafetensorsReader source(folder);
  HfConfig config = is_radio ? HfConfig(radio_config(json, source, path)) : HfConfig(*language);
  std::vector<ForeignTensor> tensors;
  std::vector<std::string> ignorable;
  if (is_radio) {
    const RadioSpelling spelling = radio_spelling(source);
    tensors = radio_tensors(std::get<RadioConfig>(config), spelling);
    add_summary(source, radio_summary_tensor(spelling, 0).name, spelling, tensors);
  } else {
    tensors = nemotron_h_tensors(*language, nemotron_h_spelling(source));
    ignorable = {"mtp."};  // multi-token prediction is not part of the model
  }
  check_tensors(tensors, source, ignorable);
  check_cover(tensors, parameters_of(config));
  return {std::move(config), std::move(source), by_param(tensors), json.dump(2) + "\n"};
}

StoredModel open_model(const std::string& folder) {
  return is_there(fs::path(folder) / kBraidFile) ? open_braid_model(folder) : open_hf_model(folder);
}

std::vector<ForeignTensor> all_spellings(const StoredModel& model) {
  std::map<std::string, ForeignTensor> by_name;
  const auto add = [&](const std::vector<ForeignTensor>& tensors) {
    for (const ForeignTensor& tensor : tensors) by_name.emplace(tensor.name, tensor);
  };
  for (const auto& [param, tensors] : model.tensors) add(tensors);
  if (const auto* language = std::get_if<HybridLmConfig>(&model.config)) {
    add(nemotron_h_tensors(*language, {}));
    add(nemotron_h_tensors(*language, {.prefix = "model.", .stacked_experts = true}));
  } else {
    for (const bool modules : {false, true}) add(radio_tensors(std::get<RadioConfig>(model.config), {modules}));
  }
  return vector_of<ForeignTensor>(by_name, [](auto& named) { return std::move(named.second); });
}

void load(const StoredModel& model, const ParamSpec& spec, const ShardCoordinates& coordinates, at::Tensor& local) {
  const auto tensors = model.tensors.find(spec.name);
  BRAID_CHECK(tensors != model.tensors.end(), "the stored model has no parameter {}", spec.name);
  load_shard(spec, coordinates, model.source, tensors->second, local);
}

WrittenModel import_hf(const std::string& hf_folder, const std::string& braid_folder) {
  const StoredModel model = open_hf_model(hf_folder);
  check_dtypes(model.tensors, model.source);
  std::vector<TensorInfo> infos;
  for (const ParamSpec& spec : parameters_of(model.config)) infos.push_back({spec.name, {}, spec.shape});
  if (const auto summary = model.tensors.find(kRadioSummary); summary != model.tensors.end())
    infos.push_back({kRadioSummary, {}, summary->second[0].shape});
  for (TensorInfo& info : infos) info.dtype = model.source.find(model.tensors.at(info.name)[0].name)->dtype;
  make_empty_folder(braid_folder);
  SafetensorsWriter writer(braid_folder, infos);
  for (const TensorInfo& info : infos) {
    at::Tensor whole = at::empty(info.shape, scalar_type(info.dtype));
    load_shard({.name = info.name, .shape = info.shape}, {}, model.source, model.tensors.at(info.name), whole);
    write_tensor(writer, info.name, whole);
  }
  writer.finish();
  write_file(fs::path(braid_folder) / kOriginalConfigFile, model.hf_config);
  write_file(fs::path(braid_folder) / kBraidFile, model_file_text(model.config));
  sync_folder(braid_folder);
  return {static_cast<std::int64_t>(infos.size()), writer.total_bytes()};
}

WrittenModel export_hf(const std::string& braid_folder, const std::string& hf_folder) {
  const StoredModel model = open_braid_model(braid_folder);
  WholeParameters parameters = {
      .config = model.config, .hf_config = model.hf_config, .where = (fs::path(braid_folder) / kBraidFile).string()};
  for (const StoredTensor& tensor : model.source.tensors()) parameters.infos.emplace(tensor.name, tensor);
  parameters.read = [&](const std::string& name) { return read_tensor(*model.source.find(name)); };
  return export_hf(parameters, hf_folder);
}

WrittenModel export_hf(const WholeParameters& parameters, const std::string& hf_folder) {
  const Json config = exported_config(parameters);
  const std::vector<ForeignTensor> tensors = hub_tensors(parameters);
  std::vector<TensorInfo> infos;
  for (const ForeignTensor& tensor : tensors)
    infos.push_back({tensor.name, parameters.infos.at(tensor.param).dtype, tensor.shape});
  make_empty_folder(hf_folder);
  SafetensorsWriter writer(hf_folder, infos);
  for (const auto& [param, parts] : by_param(tensors)) {
    const at::Tensor whole = parameters.read(param);
    for (const ForeignTensor& part : parts) write_tensor(writer, part.name, foreign_tensor(part, whole));
  }
  writer.finish();
  write_file(fs::path(hf_folder) / kConfigFile, config.dump(2) + "\n");
  sync_folder(hf_folder);
  return {static_cast<std::int64_t>(infos.size()), writer.total_bytes()};
}

}  // namespace braid
