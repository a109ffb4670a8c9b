#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>

#include "hf/architectures.h"
#include "hf/json.h"

namespace braid {
namespace {

using Json = nlohmann::json;

const std::vector<HfKey<RadioConfig>> kSettings = {{"hidden", &RadioConfig::hidden, {"hidden_size"}, 1280},
                                                   {"layers", &RadioConfig::layers, {"num_hidden_layers"}, 32},
                                                   {"heads", &RadioConfig::heads, {"num_attention_heads"}, 16},
                                                   {"patch", &RadioConfig::patch, {"patch_size"}, 16},
                                                   {"channels", &RadioConfig::channels, {"num_channels"}, 3},
                                                   {"norm_eps", &RadioConfig::norm_eps, {"layer_norm_eps"}, 1e-6},
                                                   {"init_std", &RadioConfig::init_std, {"initializer_range"}, 0.02},
                                                   {"qkv_bias", &RadioConfig::qkv_bias, {"qkv_bias"}, true}};

// Published names and module names of parameters outside of layers.
struct Renamed {
  const char *hub, *module, *ours;
};
constexpr Renamed kOutside[] = {
    {"radio_model.input_conditioner.norm_mean", "input_conditioner.norm_mean", "input_conditioner.norm_mean"},
    {"radio_model.input_conditioner.norm_std", "input_conditioner.norm_std", "input_conditioner.norm_std"},
    {"radio_model.model.patch_generator.cls_token.token", "embeddings.cls_register_token", "class_token"},
    {"radio_model.model.patch_generator.pos_embed", "embeddings.position_embedding", "position_embeddings"},
    {"radio_model.model.patch_generator.embedder.weight", "embeddings.patch_projection.weight", "embedder.weight"}};
constexpr Renamed kInLayer[] = {
    {"norm1.weight", "norm1.weight", "self_attention.linear_qkv.layer_norm_weight"},
    {"norm1.bias", "norm1.bias", "self_attention.linear_qkv.layer_norm_bias"},
    {"attn.proj.weight", "attention.output.dense.weight", "self_attention.linear_proj.weight"},
    {"attn.proj.bias", "attention.output.dense.bias", "self_attention.linear_proj.bias"},
    {"layer_scale1.lambda1", "layer_scale1.lambda1", "self_attention.layer_scale"},
    {"norm2.weight", "norm2.weight", "mlp.linear_fc1.layer_norm_weight"},
    {"norm2.bias", "norm2.bias", "mlp.linear_fc1.layer_norm_bias"},
    {"mlp.fc1.weight", "mlp.fc1.weight", "mlp.linear_fc1.weight"},
    {"mlp.fc1.bias", "mlp.fc1.bias", "mlp.linear_fc1.bias"},
    {"mlp.fc2.weight", "mlp.fc2.weight", "mlp.linear_fc2.weight"},
    {"mlp.fc2.bias", "mlp.fc2.bias", "mlp.linear_fc2.bias"},
    {"layer_scale2.lambda1", "layer_scale2.lambda1", "mlp.layer_scale"}};

// Hugging Face stores all queries, then all keys, then all values, in one tensor or in three; we store q, k and v of
// each head.
void add_qkv(const RadioConfig& config, bool modules, const std::string& theirs, const std::string& ours,
             const std::string& kind, std::vector<ForeignTensor>& tensors) {
  const std::int64_t hidden = config.hidden, heads = config.heads, dim = hidden / heads;
  const auto copies_of = [&](std::int64_t part, std::int64_t begin) {
    std::vector<RowCopy> copies;
    for (std::int64_t head = 0; head < heads; ++head)
      copies.push_back({begin + head * dim, (3 * head + part) * dim, dim});
    return copies;
  };
  const auto add = [&](const std::string& name, std::int64_t rows, std::vector<RowCopy> copies) {
    std::vector<std::int64_t> shape = {rows};
    if (kind == "weight") shape.push_back(hidden);
    tensors.push_back({.name = theirs + name + "." + kind,
                       .shape = std::move(shape),
                       .param = ours + "self_attention.linear_qkv." + kind,
                       .rows = std::move(copies)});
  };
  if (modules) {
    const char* const names[] = {"query", "key", "value"};
    for (std::int64_t part = 0; part < 3; ++part)
      add(std::string("attention.attention.") + names[part], hidden, copies_of(part, 0));
    return;
  }
  std::vector<RowCopy> all;
  for (std::int64_t part = 0; part < 3; ++part)
    for (const RowCopy& copy : copies_of(part, part * hidden)) all.push_back(copy);
  add("attn.qkv", 3 * hidden, std::move(all));
}

bool has_layer_scale(const SafetensorsReader& source) {
  for (const StoredTensor& tensor : source.tensors())
    if (tensor.name.ends_with(".lambda1")) return true;
  return false;
}

void refuse_unsupported(HfConfigReader& reader) {
  reader.supports_only("use_swiglu_ffn", false);
  for (const char* key : {"drop_path_rate", "hidden_dropout_prob", "attention_probs_dropout_prob"})
    reader.supports_only(key, 0);
}

std::string gelu_of(HfConfigReader& reader) {
  const std::string act = reader.string({"hidden_act"}, "gelu");
  if (act != "gelu" && act != "gelu_pytorch_tanh")
    reader.complain("hidden_act", fmt::format("hidden_act=\"{}\" is not supported", act),
                    "use gelu or gelu_pytorch_tanh");
  return act == "gelu" ? "erf" : "tanh";
}

int ffn_of(int hidden, double mlp_ratio) {
  const double ffn = hidden * mlp_ratio;  // transformers truncates the fraction
  return ffn >= 1 && ffn < 1e9 ? static_cast<int>(ffn) : 0;
}

// A ratio from which transformers computes exactly this width.
double mlp_ratio_of(const RadioConfig& config) {
  const double ratio = static_cast<double>(config.ffn) / config.hidden;
  return ffn_of(config.hidden, ratio) == config.ffn ? ratio : std::nextafter(ratio, 1e9);
}

void refuse_to_export(const RadioConfig& config, const std::string& where) {
  std::vector<Problem> problems;
  if (config.final_norm)
    problems.push_back(
        {"transformers has no norm after RADIO's last layer, but this model has one", where + ", final_norm", ""});
  if (!config.normalize_pixels)
    problems.push_back(
        {"transformers normalises pixels inside RADIO, but this model does not", where + ", normalize_pixels", ""});
  if (!problems.empty()) throw ConfigError(problems);
}

}  // namespace

RadioSpelling radio_spelling(const SafetensorsReader& source) {
  return {.modules = source.find("embeddings.position_embedding") != nullptr};
}

RadioConfig radio_config(const Json& json, const SafetensorsReader& source, const std::string& where) {
  HfConfigReader reader(json, where);
  refuse_unsupported(reader);
  RadioConfig c;
  reader.settings(kSettings, c);
  c.ffn = ffn_of(c.hidden, reader.number({"mlp_ratio"}, 4));
  c.position_side = c.patch > 0 ? reader.size({"max_img_size"}, 2048) / c.patch : 0;
  c.class_tokens = reader.size({"num_cls_tokens"}, 3) + reader.size({"num_registers"}, 7);
  c.gelu = gelu_of(reader);
  c.layer_scale = has_layer_scale(source);
  if (!c.layer_scale) reader.supports_only("layerscale_value", 1.0);
  c.final_norm = false;
  c.normalize_pixels = true;
  auto names = names_in_file(kSettings);
  names.insert({{"ffn", "mlp_ratio"}, {"position_side", "max_img_size"}, {"class_tokens", "num_cls_tokens"}});
  if (!reader.failed()) reader.add(validate(c, LayoutSizes{}, where), names);
  reader.throw_if_failed();
  return c;
}

Json radio_json(const RadioConfig& c, const Json& original, const std::string& where) {
  refuse_to_export(c, where);
  Json json = original;
  json.erase("auto_map");
  json["architectures"] = {"RadioModel"};
  json["model_type"] = "radio";
  write_settings(kSettings, c, json);
  json["hidden_act"] = c.gelu == "erf" ? "gelu" : "gelu_pytorch_tanh";
  // Several of their values map to one of ours: keep the original value if it still maps to the same.
  HfConfigReader reader(original, "the original config.json");
  if (ffn_of(c.hidden, reader.number({"mlp_ratio"}, 4)) != c.ffn) json["mlp_ratio"] = mlp_ratio_of(c);
  if (reader.size({"max_img_size"}, 2048) / c.patch != c.position_side)
    json["max_img_size"] = c.position_side * c.patch;
  if (reader.size({"num_cls_tokens"}, 3) + reader.size({"num_registers"}, 7) != c.class_tokens) {
    json["num_cls_tokens"] = std::min(3, c.class_tokens);
    json["num_registers"] = c.class_tokens - std::min(3, c.class_tokens);
  }
  if (!c.layer_scale) json["layerscale_value"] = 1.0;
  reader.throw_if_failed();
  return json;
}

std::vector<ForeignTensor> radio_tensors(const RadioConfig& config, const RadioSpelling& spelling) {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const ParamSpec& spec : declare_parameters(config)) shapes[spec.name] = spec.shape;
  std::vector<ForeignTensor> tensors;
  // Renamed tensors that this configuration lacks are omitted.
  const auto add = [&](const std::string& theirs, const std::string& ours, const Renamed& name) {
    if (const auto shape = shapes.find(ours + name.ours); shape != shapes.end())
      tensors.push_back(
          whole_parameter(theirs + (spelling.modules ? name.module : name.hub), shape->second, shape->first));
  };
  for (const Renamed& name : kOutside) add("", "", name);
  for (int i = 0; i < config.layers; ++i) {
    const std::string theirs =
        fmt::format("{}.{}.", spelling.modules ? "encoder.layer" : "radio_model.model.blocks", i);
    const std::string ours = fmt::format("decoder.layers.{}.", i);
    for (const Renamed& name : kInLayer) add(theirs, ours, name);
    add_qkv(config, spelling.modules, theirs, ours, "weight", tensors);
    if (config.qkv_bias) add_qkv(config, spelling.modules, theirs, ours, "bias", tensors);
  }
  return tensors;
}

ForeignTensor radio_summary_tensor(const RadioSpelling& spelling, std::int64_t count) {
  ForeignTensor tensor =
      whole_parameter(spelling.modules ? kRadioSummary : "radio_model.summary_idxs", {count}, kRadioSummary);
  tensor.whole_numbers = true;
  return tensor;
}

}  // namespace braid
