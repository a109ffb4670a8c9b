#include <nlohmann/json.hpp>
#include "base/strings.h"
#include "hf/model.h"

namespace braid {
namespace {

using Json = nlohmann::json;

const char* const kFloatKey = "__float__";
constexpr int kDeepest = 32;

std::string with_quoted_infinities(const std::string& text) {
  constexpr std::string_view kWords[] = {"-Infinity", "Infinity", "NaN"};
  std::string result;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size();) {
    const std::string_view rest = std::string_view(text).substr(i);
    const auto word = std::ranges::find_if(kWords, [&](std::string_view each) { return rest.starts_with(each); });
    if (!in_string && word != std::end(kWords)) {
      result += fmt::format(R"({{"{}": "{}"}})", kFloatKey, *word);
      i += word->size();
      continue;
    }
    if (rest[0] == '"') in_string = !in_string;
    const std::string_view character = rest.substr(0, in_string && rest[0] == '\\' ? 2 : 1);
    result += character;
    i += character.size();
  }
  return result;
}

// A setting of a model's configuration, and its keys in config.json in the order in which they are looked for.
using HfNames = std::vector<const char*>;
template <class Config>
struct HfKey {
  const char* ours;
  std::variant<int Config::*, double Config::*, bool Config::*> member;
  HfNames keys;
  double fallback;          // transformers' default
  std::size_t written = 0;  // the one of `keys` that an export has
  int most = 1 << 20;       // of a size: an invalid config must not make us list a billion tensors
};
template <class Config>
using HfKeys = std::vector<HfKey<Config>>;

// Extracts typed values and collects every mistake.
class HfConfigReader {
 public:
  HfConfigReader(const Json& config, std::string where) : config_(config), where_(std::move(where)) {}

  // The value of the first of these keys in the config; `fallback`, transformers' default, if it has none of them.
  int size(const HfNames& keys, int fallback, int most = 1 << 20) {
    return parsed(keys, fallback, fmt::format("an integer from 0 to {}", most),
                  [&](const Json& value) { return value.is_number_integer() && value >= 0 && value <= most; });
  }
  double number(const HfNames& keys, double fallback) {
    return parsed(keys, fallback, "a finite number",
                  [](const Json& value) { return value.is_number() && std::isfinite(value.get<double>()); });
  }
  bool boolean(const HfNames& keys, bool fallback) {
    return parsed(keys, fallback, "true or false", [](const Json& value) { return value.is_boolean(); });
  }
  std::string string(const HfNames& keys, const std::string& fallback) {
    return parsed(keys, fallback, "a string", [](const Json& value) { return value.is_string(); });
  }
  template <class Config>
  void settings(const HfKeys<Config>& table, Config& config) {
    for (const HfKey<Config>& row : table) {
      if (auto* member = std::get_if<int Config::*>(&row.member))
        config.*(*member) = size(row.keys, static_cast<int>(row.fallback), row.most);
      if (auto* member = std::get_if<double Config::*>(&row.member)) config.*(*member) = number(row.keys, row.fallback);
      if (auto* member = std::get_if<bool Config::*>(&row.member))
        config.*(*member) = boolean(row.keys, row.fallback != 0);
    }
  }

  // The raw value; null if there is none.
  const Json& value(const char* key) const {
    static const Json null;
    const auto found = config_.find(key);
    return found == config_.end() ? null : *found;
  }

  // Braid's models support only this value: any other is a problem. The keys may be absent.
  void supports_only(const HfNames& keys, const Json& supported) {
    for (const char* key : keys)
      if (config_.contains(key) && config_[key] != supported)
        complain(key, fmt::format("{}={} is not supported", key, value_text(config_[key])),
                 fmt::format("Braid's model has {}={}", key, supported.dump()));
  }

  void complain(const std::string& key, std::string what, std::string fix) {
    problems_.add(std::move(what), fmt::format("{}, {}", where_, key), std::move(fix));
  }

  // Throws the problems, or those of validate() with the `keys` of this file in place of our fields.
  void finish(const std::vector<Problem>& of_config, const std::map<std::string, std::string>& keys) {
    problems_.throw_if_any();
    for (const Problem& problem : of_config) {
      const std::string field = problem.where.substr(problem.where.rfind('.') + 1);
      const auto key = keys.find(field);
      std::string what = problem.what;
      if (key != keys.end() && what.starts_with(field)) what.replace(0, field.size(), key->second);
      complain(key == keys.end() ? field : key->second, what, problem.fix);
    }
    problems_.throw_if_any();
  }

 private:
  template <class Value>
  Value parsed(const HfNames& keys, const Value& fallback, const std::string& expected, const auto& fits) {
    const auto key = std::ranges::find_if(keys, [&](const char* name) { return config_.contains(name); });
    if (key == keys.end()) return fallback;
    const Json& value = config_[*key];
    if (fits(value)) return value.get<Value>();
    complain(*key, fmt::format("{} should be {}, not {}", *key, expected, value_text(value)), "");
    return fallback;
  }

  const Json& config_;
  std::string where_;
  ProblemList problems_;
};

// The names of our fields in config.json, for HfConfigReader::finish().
template <class Config>
std::map<std::string, std::string> names_in_file(const HfKeys<Config>& table) {
  std::map<std::string, std::string> names;
  for (const HfKey<Config>& row : table) names[row.ours] = row.keys[row.written];
  return names;
}

// Replaces the settings in a config.json, under any of their keys.
template <class Config>
void write_settings(const HfKeys<Config>& table, const Config& config, Json& json) {
  for (const HfKey<Config>& row : table) {
    for (const char* key : row.keys) json.erase(key);
    std::visit([&](auto member) { json[row.keys[row.written]] = config.*member; }, row.member);
  }
}

template <class Config>
std::map<std::string, std::vector<std::int64_t>> shapes_of(const Config& config) {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const ParamSpec& spec : declare_parameters(config)) shapes[spec.name] = spec.shape;
  return shapes;
}

// --- the hybrid language model

struct LayerType {
  char letter;
  const char *name, *legacy_name;
};
constexpr LayerType kLayerTypes[] = {
    {'M', "linear_attention", "mamba"}, {'*', "full_attention", "attention"}, {'E', "moe", "moe"}, {'-', "mlp", "mlp"}};

using Hybrid = HybridLmConfig;
const HfKeys<Hybrid> kHybridSettings = {
    {"hidden", &Hybrid::hidden, {"hidden_size"}, 4096},
    {"vocab", &Hybrid::vocab, {"vocab_size"}, 131072, 0, 1 << 24},
    {"norm_eps", &Hybrid::norm_eps, {"layer_norm_epsilon"}, 1e-5},
    {"init_std", &Hybrid::init_std, {"initializer_range"}, 0.02},
    {"heads", &Hybrid::heads, {"num_attention_heads"}, 32},
    {"kv_heads", &Hybrid::kv_heads, {"num_key_value_heads"}, 8},
    {"head_dim", &Hybrid::head_dim, {"head_dim"}, 128},
    {"mamba_heads", &Hybrid::mamba_heads, {"mamba_num_heads"}, 128},
    {"mamba_head_dim", &Hybrid::mamba_head_dim, {"mamba_head_dim"}, 64},
    {"mamba_groups", &Hybrid::mamba_groups, {"mamba_n_groups", "n_groups"}, 8, 1},
    {"mamba_state", &Hybrid::mamba_state, {"ssm_state_size"}, 128},
    {"mamba_conv", &Hybrid::mamba_conv, {"mamba_d_conv", "conv_kernel"}, 4, 1},
    {"mamba_chunk", &Hybrid::mamba_chunk, {"mamba_chunk_size", "chunk_size"}, 128, 1},
    {"mamba_dt_min", &Hybrid::mamba_dt_min, {"mamba_dt_min", "time_step_min"}, 0.001, 1},
    {"mamba_conv_bias", &Hybrid::mamba_conv_bias, {"mamba_conv_bias", "use_conv_bias"}, true, 1},
    {"ffn", &Hybrid::ffn, {"intermediate_size"}, 21504},
    {"experts", &Hybrid::experts, {"n_routed_experts", "num_local_experts"}, 8},
    {"top_k", &Hybrid::top_k, {"num_experts_per_tok"}, 2},
    {"expert_ffn", &Hybrid::expert_ffn, {"moe_intermediate_size"}, 7688},
    {"shared_ffn", &Hybrid::shared_ffn, {"moe_shared_expert_intermediate_size"}, 7688},
    {"router_scaling", &Hybrid::router_scaling, {"routed_scaling_factor"}, 1},
    {"router_normalize", &Hybrid::router_normalize, {"norm_topk_prob"}, true}};

std::string pattern_of_string(const Json& value, HfConfigReader& reader) {
  const char* const key = "hybrid_override_pattern";
  if (!value.is_string()) {
    reader.complain(key, fmt::format("{} should be a string, not {}", key, value_text(value)), "");
    return "M";
  }
  const std::string pattern = value.get<std::string>();
  if (const auto problem = pattern_problem(pattern, /*may_have_stages=*/false))
    reader.complain(key, problem->what, problem->fix);
  return pattern;
}

std::string pattern_of_list(const char* key, const Json& value, HfConfigReader& reader) {
  std::string pattern;
  if (!value.is_array()) reader.complain(key, fmt::format("{} should be a list, not {}", key, value_text(value)), "");
  int layer = -1;
  for (const Json& name : value.is_array() ? value : Json::array()) {
    ++layer;
    const auto type = std::ranges::find_if(kLayerTypes, [&](const LayerType& candidate) {
      return name == candidate.name || name == candidate.legacy_name;
    });
    if (type != std::end(kLayerTypes))
      pattern += type->letter;
    else
      reader.complain(key, fmt::format("layer {} is {}, which is not a kind of layer", layer, value_text(name)),
                      "use linear_attention, full_attention, moe or mlp");
  }
  return pattern;
}

// transformers reads the pattern only if there is no list.
std::string pattern_of(HfConfigReader& reader) {
  for (const char* key : {"layers_block_type", "layer_types"})
    if (const Json& list = reader.value(key); !list.is_null()) return pattern_of_list(key, list, reader);
  if (const Json& pattern = reader.value("hybrid_override_pattern"); !pattern.is_null())
    return pattern_of_string(pattern, reader);
  return "ME*-";
}

void refuse_unsupported(HfConfigReader& reader, const std::string& pattern) {
  reader.supports_only({"tie_word_embeddings", "use_bias", "residual_in_fp32"}, false);
  reader.supports_only({"hidden_dropout", "attention_dropout", "num_nextn_predict_layers"}, 0);
  reader.supports_only({"attention_bias"}, false);
  reader.supports_only({"sliding_window"}, nullptr);
  reader.supports_only({"mlp_bias"}, false);
  reader.supports_only({"mlp_hidden_act"}, "relu2");
  reader.supports_only({"mamba_proj_bias"}, false);
  reader.supports_only({"mamba_hidden_act"}, "silu");
  if (pattern.find('E') == pattern.npos) return;
  reader.supports_only({"n_group", "topk_group", "n_shared_experts"}, 1);
  reader.supports_only({"moe_latent_size"}, nullptr);
}

// transformers clamps the time step to [time_step_min, infinity) and ignores time_step_limit; the model's original code
// uses the limit. Both agree only on a limit that has no effect.
void check_time_step_limit(HfConfigReader& reader, double time_step_min) {
  const Json infinity = {{kFloatKey, "Infinity"}};
  for (const char* key : {"mamba_dt_limit", "time_step_limit"}) {
    const Json& limit = reader.value(key);
    if (limit.is_null()) continue;
    if (!limit.is_array() || limit.size() != 2 || !limit[0].is_number())
      reader.complain(key, fmt::format("{} should be two numbers, not {}", key, value_text(limit)), "");
    else if (limit[0] > time_step_min || limit[1] != infinity)
      reader.complain(key, fmt::format("{}={} is not supported", key, value_text(limit)),
                      fmt::format("transformers ignores it and uses [{}, Infinity]: set that", time_step_min));
  }
}

// Tensors of a layer, relative to its prefixes. A parameter is a tensor; the queries, keys and values of all heads; or
// the experts, each a tensor or all in one.
struct LayerTensor {
  char letter;
  const char *theirs, *ours;
  enum { Whole, Qkv, Experts } kind = Whole;
};
constexpr LayerTensor kLayerTensors[] = {
    {'M', "norm.weight", "mixer.in_proj.layer_norm_weight"},
    {'M', "mixer.in_proj.weight", "mixer.in_proj.weight"},
    {'M', "mixer.conv1d.weight", "mixer.conv1d.weight"},
    {'M', "mixer.conv1d.bias", "mixer.conv1d.bias"},
    {'M', "mixer.A_log", "mixer.A_log"},
    {'M', "mixer.D", "mixer.D"},
    {'M', "mixer.dt_bias", "mixer.dt_bias"},
    {'M', "mixer.norm.weight", "mixer.norm.weight"},
    {'M', "mixer.out_proj.weight", "mixer.out_proj.weight"},
    {'*', "norm.weight", "self_attention.linear_qkv.layer_norm_weight"},
    {'*', "mixer.", "self_attention.linear_qkv.weight", LayerTensor::Qkv},
    {'*', "mixer.o_proj.weight", "self_attention.linear_proj.weight"},
    {'E', "norm.weight", "pre_mlp_layernorm.weight"},
    {'E', "mixer.gate.weight", "mlp.router.weight"},
    {'E', "mixer.gate.e_score_correction_bias", "mlp.router.expert_bias"},
    {'E', "up_proj", "mlp.experts.experts.linear_fc1.weight", LayerTensor::Experts},
    {'E', "down_proj", "mlp.experts.experts.linear_fc2.weight", LayerTensor::Experts},
    {'E', "mixer.shared_experts.up_proj.weight", "mlp.shared_experts.linear_fc1.weight"},
    {'E', "mixer.shared_experts.down_proj.weight", "mlp.shared_experts.linear_fc2.weight"},
    {'-', "norm.weight", "mlp.linear_fc1.layer_norm_weight"},
    {'-', "mixer.up_proj.weight", "mlp.linear_fc1.weight"},
    {'-', "mixer.down_proj.weight", "mlp.linear_fc2.weight"}};

// Our layout has, for each key/value head, its query heads, its keys and its values.
void add_grouped_qkv(const HybridLmConfig& config, const std::string& theirs, const std::string& param,
                     std::vector<ForeignTensor>& tensors) {
  const std::int64_t groups = config.kv_heads, dim = config.head_dim, query = config.heads / groups * dim;
  const auto add = [&](const char* name, std::int64_t rows, std::int64_t begin) {
    ForeignTensor part = {.name = theirs + name, .shape = {groups * rows, config.hidden}, .param = param};
    for (std::int64_t g = 0; g < groups; ++g) part.rows.push_back({g * rows, g * (query + 2 * dim) + begin, rows});
    tensors.push_back(std::move(part));
  };
  add("q_proj.weight", query, 0);
  add("k_proj.weight", dim, query);
  add("v_proj.weight", dim, query + dim);
}

void add_experts(const std::string& theirs, const char* name, const std::vector<std::int64_t>& shape,
                 const std::string& param, std::vector<ForeignTensor>& tensors) {
  for (std::int64_t e = 0; e < shape[0]; ++e)
    tensors.push_back({.name = fmt::format("{}{}.{}.weight", theirs, e, name),
                       .shape = {shape[1], shape[2]},
                       .param = param,
                       .rows = {{0, e * shape[1], shape[1]}}});
}

void refuse_to_export(const HybridLmConfig& config, const std::string& where) {
  std::vector<Problem> problems;
  if (config.mamba_dt_max > 0)
    problems.push_back(
        {fmt::format("transformers has no upper limit of the time step, but this model has {}", config.mamba_dt_max),
         where + ", mamba_dt_max", "use 0"});
  if (config.pattern.find('E') != std::string::npos && config.shared_ffn == 0)
    problems.push_back(
        {"transformers always has a shared expert, but this model has none", where + ", shared_ffn", ""});
  if (!problems.empty()) throw ConfigError(problems);
}

const HfKeys<RadioConfig> kRadioSettings = {{"hidden", &RadioConfig::hidden, {"hidden_size"}, 1280},
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

// Hugging Face stores all queries, all keys, all values, in one tensor or three; we store q, k and v of each head.
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

GeluForm gelu_of(HfConfigReader& reader) {
  const std::string act = reader.string({"hidden_act"}, "gelu");
  if (act != "gelu" && act != "gelu_pytorch_tanh")
    reader.complain("hidden_act", fmt::format("hidden_act=\"{}\" is not supported", act),
                    "use gelu or gelu_pytorch_tanh");
  return act == "gelu" ? GeluForm::Erf : GeluForm::Tanh;
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

Json parse_hf_json(const std::string& text, const std::string& name) {
  const auto refuse_depth = [&](int depth, Json::parse_event_t event, const Json&) {
    const bool opens = event == Json::parse_event_t::array_start || event == Json::parse_event_t::object_start;
    if (opens && depth >= kDeepest)
      throw ConfigError({fmt::format("lists and objects are nested more than {} deep", kDeepest), name,
                         "a model's configuration is not: download the file again"});
    return true;
  };
  Json config;
  try {
    config = Json::parse(with_quoted_infinities(text), refuse_depth);
  } catch (const Json::parse_error& e) {
    throw ConfigError({fmt::format("not JSON: {}", json_error(e.what())), name, "download the file again"});
  }
  if (!config.is_object())
    throw ConfigError({"a model's configuration must be a JSON object", name, "download the file again"});
  return config;
}

std::string value_text(const Json& value) {
  constexpr std::size_t kLongest = 200;
  const std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true);
  return text.size() <= kLongest ? text : fmt::format("{}... ({} characters)", text.substr(0, kLongest), text.size());
}

NemotronHSpelling nemotron_h_spelling(const SafetensorsReader& source) {
  NemotronHSpelling spelling;
  if (source.find("model.embeddings.weight")) spelling.prefix = "model.";
  for (const StoredTensor& tensor : source.tensors())
    spelling.stacked_experts |= tensor.name.ends_with(".mixer.experts.up_proj");
  return spelling;
}

HybridLmConfig nemotron_h_config(const Json& json, const std::string& where) {
  // transformers gives every query head its own key and value if the number of these is null.
  Json known = json;
  const bool null_kv_heads = json.contains("num_key_value_heads") && json["num_key_value_heads"].is_null();
  if (null_kv_heads) known.erase("num_key_value_heads");
  HfConfigReader reader(known, where);
  HybridLmConfig c;
  c.pattern = pattern_of(reader);
  refuse_unsupported(reader, c.pattern);
  reader.settings(kHybridSettings, c);
  if (null_kv_heads) c.kv_heads = c.heads;
  c.mamba_dt_max = 0;
  check_time_step_limit(reader, c.mamba_dt_min);
  reader.finish(validate(c, LayoutSizes{}, where), names_in_file(kHybridSettings));
  return c;
}

Json nemotron_h_json(const HybridLmConfig& c, const Json& original, const std::string& where) {
  refuse_to_export(c, where);
  Json json = original;
  // Remove other spellings of the layers, and references to code that an export does not include.
  for (const char* key : {"hybrid_override_pattern", "layer_types", "num_hidden_layers", "auto_map"}) json.erase(key);
  json["architectures"] = {"NemotronHForCausalLM"};
  json["model_type"] = "nemotron_h";
  json["layers_block_type"] = Json::array();
  for (const char letter : layer_letters(c)) {
    const auto* type = std::ranges::find(kLayerTypes, letter, &LayerType::letter);
    BRAID_CHECK(type != std::end(kLayerTypes), "'{}' has no name in Hugging Face's files", letter);
    json["layers_block_type"].push_back(type->name);
  }
  write_settings(kHybridSettings, c, json);
  json["tie_word_embeddings"] = false;
  return json;
}

std::vector<ForeignTensor> nemotron_h_tensors(const HybridLmConfig& given, const NemotronHSpelling& spelling) {
  HybridLmConfig config = given;
  config.pattern = layer_letters(given);
  const auto shapes = shapes_of(config);
  std::vector<ForeignTensor> tensors;
  // Tensors that this configuration lacks are omitted.
  const auto add = [&](const std::string& theirs, const std::string& ours) {
    if (const auto shape = shapes.find(ours); shape != shapes.end())
      tensors.push_back(whole_parameter(theirs, shape->second, ours));
  };
  add(spelling.prefix + "embeddings.weight", "embedding.word_embeddings.weight");
  for (std::size_t i = 0; i < config.pattern.size(); ++i) {
    const std::string layer = fmt::format("{}layers.{}.", spelling.prefix, i);
    for (const auto& [letter, theirs, name, kind] : kLayerTensors) {
      if (letter != config.pattern[i]) continue;
      const std::string ours = fmt::format("decoder.layers.{}.{}", i, name), experts = layer + "mixer.experts.";
      if (kind == LayerTensor::Qkv)
        add_grouped_qkv(config, layer + theirs, ours, tensors);
      else if (kind == LayerTensor::Experts && !spelling.stacked_experts)
        add_experts(experts, theirs, shapes.at(ours), ours, tensors);
      else
        add((kind == LayerTensor::Experts ? experts : layer) + theirs, ours);
    }
  }
  add(spelling.prefix + "norm_f.weight", "decoder.final_norm.weight");
  add("lm_head.weight", "output_layer.weight");
  return tensors;
}

RadioConfig radio_config(const Json& json, const SafetensorsReader& source, const std::string& where) {
  HfConfigReader reader(json, where);
  reader.supports_only({"use_swiglu_ffn"}, false);
  reader.supports_only({"drop_path_rate", "hidden_dropout_prob", "attention_probs_dropout_prob"}, 0);
  RadioConfig c;
  reader.settings(kRadioSettings, c);
  c.ffn = ffn_of(c.hidden, reader.number({"mlp_ratio"}, 4));
  c.position_side = c.patch > 0 ? reader.size({"max_img_size"}, 2048) / c.patch : 0;
  c.class_tokens = reader.size({"num_cls_tokens"}, 3) + reader.size({"num_registers"}, 7);
  c.gelu = gelu_of(reader);
  c.layer_scale = std::ranges::any_of(source.tensors(),
                                      [](const StoredTensor& tensor) { return tensor.name.ends_with(".lambda1"); });
  if (!c.layer_scale) reader.supports_only({"layerscale_value"}, 1.0);
  c.final_norm = false;
  c.normalize_pixels = true;
  auto names = names_in_file(kRadioSettings);
  names.insert({{"ffn", "mlp_ratio"}, {"position_side", "max_img_size"}, {"class_tokens", "num_cls_tokens"}});
  reader.finish(validate(c, LayoutSizes{}, where), names);
  return c;
}

Json radio_json(const RadioConfig& c, const Json& original, const std::string& where) {
  refuse_to_export(c, where);
  Json json = original;
  json.erase("auto_map");
  json["architectures"] = {"RadioModel"};
  json["model_type"] = "radio";
  write_settings(kRadioSettings, c, json);
  json["hidden_act"] = c.gelu == GeluForm::Erf ? "gelu" : "gelu_pytorch_tanh";
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
  reader.finish({}, {});
  return json;
}

std::vector<ForeignTensor> radio_tensors(const RadioConfig& config, const RadioSpelling& spelling) {
  const auto shapes = shapes_of(config);
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
