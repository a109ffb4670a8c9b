#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>

#include "hf/architectures.h"
#include "hf/json.h"

namespace braid {
namespace {

using Json = nlohmann::json;

struct LayerType {
  char letter;
  const char *name, *legacy_name;
};
constexpr LayerType kLayerTypes[] = {
    {'M', "linear_attention", "mamba"}, {'*', "full_attention", "attention"}, {'E', "moe", "moe"}, {'-', "mlp", "mlp"}};

using Config = HybridLmConfig;
const std::vector<HfKey<Config>> kSettings = {
    {"hidden", &Config::hidden, {"hidden_size"}, 4096},
    {"vocab", &Config::vocab, {"vocab_size"}, 131072, 0, 1 << 24},
    {"norm_eps", &Config::norm_eps, {"layer_norm_epsilon"}, 1e-5},
    {"init_std", &Config::init_std, {"initializer_range"}, 0.02},
    {"heads", &Config::heads, {"num_attention_heads"}, 32},
    {"kv_heads", &Config::kv_heads, {"num_key_value_heads"}, 8},
    {"head_dim", &Config::head_dim, {"head_dim"}, 128},
    {"mamba_heads", &Config::mamba_heads, {"mamba_num_heads"}, 128},
    {"mamba_head_dim", &Config::mamba_head_dim, {"mamba_head_dim"}, 64},
    {"mamba_groups", &Config::mamba_groups, {"mamba_n_groups", "n_groups"}, 8, 1},
    {"mamba_state", &Config::mamba_state, {"ssm_state_size"}, 128},
    {"mamba_conv", &Config::mamba_conv, {"mamba_d_conv", "conv_kernel"}, 4, 1},
    {"mamba_chunk", &Config::mamba_chunk, {"mamba_chunk_size", "chunk_size"}, 128, 1},
    {"mamba_dt_min", &Config::mamba_dt_min, {"mamba_dt_min", "time_step_min"}, 0.001, 1},
    {"mamba_conv_bias", &Config::mamba_conv_bias, {"mamba_conv_bias", "use_conv_bias"}, true, 1},
    {"ffn", &Config::ffn, {"intermediate_size"}, 21504},
    {"experts", &Config::experts, {"n_routed_experts", "num_local_experts"}, 8},
    {"top_k", &Config::top_k, {"num_experts_per_tok"}, 2},
    {"expert_ffn", &Config::expert_ffn, {"moe_intermediate_size"}, 7688},
    {"shared_ffn", &Config::shared_ffn, {"moe_shared_expert_intermediate_size"}, 7688},
    {"router_scaling", &Config::router_scaling, {"routed_scaling_factor"}, 1},
    {"router_normalize", &Config::router_normalize, {"norm_topk_prob"}, true}};

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
    const auto type = std::find_if(std::begin(kLayerTypes), std::end(kLayerTypes), [&](const LayerType& candidate) {
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
  const auto has = [&](char letter) { return pattern.find(letter) != pattern.npos; };
  for (const char* key : {"tie_word_embeddings", "use_bias", "residual_in_fp32"}) reader.supports_only(key, false);
  for (const char* key : {"hidden_dropout", "attention_dropout", "num_nextn_predict_layers"})
    reader.supports_only(key, 0);
  reader.supports_only("attention_bias", false);
  reader.supports_only("sliding_window", nullptr);
  reader.supports_only("mlp_bias", false);
  reader.supports_only("mlp_hidden_act", "relu2");
  reader.supports_only("mamba_proj_bias", false);
  reader.supports_only("mamba_hidden_act", "silu");
  if (!has('E')) return;
  for (const char* key : {"n_group", "topk_group", "n_shared_experts"}) reader.supports_only(key, 1);
  reader.supports_only("moe_latent_size", nullptr);
}

// transformers clamps the time step to [time_step_min, infinity) and ignores time_step_limit; the model's original code
// uses the limit. Both agree only on a limit that has no effect.
void check_time_step_limit(HfConfigReader& reader, double time_step_min) {
  const Json infinity = {{"__float__", "Infinity"}};
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

class TensorList {
 public:
  TensorList(const HybridLmConfig& config, const NemotronHSpelling& spelling) : config_(config), spelling_(spelling) {
    config_.pattern = layer_letters(config);
    for (const ParamSpec& spec : declare_parameters(config_)) shapes_[spec.name] = spec.shape;
  }

  std::vector<ForeignTensor> run() {
    const std::string& prefix = spelling_.prefix;
    add(prefix + "embeddings.weight", "embedding.word_embeddings.weight");
    for (std::size_t i = 0; i < config_.pattern.size(); ++i) {
      theirs_ = fmt::format("{}layers.{}.", prefix, i);
      ours_ = fmt::format("decoder.layers.{}.", i);
      add_layer(config_.pattern[i]);
    }
    theirs_.clear();
    ours_.clear();
    add(prefix + "norm_f.weight", "decoder.final_norm.weight");
    add("lm_head.weight", "output_layer.weight");
    return std::move(tensors_);
  }

 private:
  // A parameter stored as one tensor; names are relative to the current layer.
  void add(const std::string& name, const std::string& param) {
    tensors_.push_back(whole_parameter(theirs_ + name, shapes_.at(ours_ + param), ours_ + param));
  }

  void add_layer(char letter) {
    if (letter == 'M') add_mamba();
    if (letter == '*') add_attention();
    if (letter == 'E') add_moe();
    if (letter == '-') {
      add("norm.weight", "mlp.linear_fc1.layer_norm_weight");
      add_mlp("mixer.", "mlp.");
    }
  }

  void add_mamba() {
    add("norm.weight", "mixer.in_proj.layer_norm_weight");
    for (const char* name :
         {"in_proj.weight", "conv1d.weight", "conv1d.bias", "A_log", "D", "dt_bias", "norm.weight", "out_proj.weight"})
      if (config_.mamba_conv_bias || name != std::string("conv1d.bias"))
        add(std::string("mixer.") + name, std::string("mixer.") + name);
  }

  void add_mlp(const std::string& theirs, const std::string& ours) {
    add(theirs + "up_proj.weight", ours + "linear_fc1.weight");
    add(theirs + "down_proj.weight", ours + "linear_fc2.weight");
  }

  // Our layout has, for each key/value head, its query heads, its keys and its values.
  void add_attention() {
    add("norm.weight", "self_attention.linear_qkv.layer_norm_weight");
    const std::int64_t groups = config_.kv_heads, dim = config_.head_dim, query = config_.heads / groups * dim;
    const auto add_part = [&](const char* name, std::int64_t rows, std::int64_t begin) {
      ForeignTensor part = {.name = theirs_ + name,
                            .shape = {groups * rows, config_.hidden},
                            .param = ours_ + "self_attention.linear_qkv.weight"};
      for (std::int64_t g = 0; g < groups; ++g) part.rows.push_back({g * rows, g * (query + 2 * dim) + begin, rows});
      tensors_.push_back(std::move(part));
    };
    add_part("mixer.q_proj.weight", query, 0);
    add_part("mixer.k_proj.weight", dim, query);
    add_part("mixer.v_proj.weight", dim, query + dim);
    add("mixer.o_proj.weight", "self_attention.linear_proj.weight");
  }

  void add_moe() {
    add("norm.weight", "pre_mlp_layernorm.weight");
    add("mixer.gate.weight", "mlp.router.weight");
    add("mixer.gate.e_score_correction_bias", "mlp.router.expert_bias");
    add_experts("up_proj", "mlp.experts.experts.linear_fc1.weight");
    add_experts("down_proj", "mlp.experts.experts.linear_fc2.weight");
    if (config_.shared_ffn > 0) add_mlp("mixer.shared_experts.", "mlp.shared_experts.");
  }

  void add_experts(const std::string& name, const std::string& param) {
    if (spelling_.stacked_experts) return add("mixer.experts." + name, param);
    const std::vector<std::int64_t>& shape = shapes_.at(ours_ + param);
    for (std::int64_t e = 0; e < shape[0]; ++e)
      tensors_.push_back({.name = fmt::format("{}mixer.experts.{}.{}.weight", theirs_, e, name),
                          .shape = {shape[1], shape[2]},
                          .param = ours_ + param,
                          .rows = {{0, e * shape[1], shape[1]}}});
  }

  HybridLmConfig config_;
  const NemotronHSpelling& spelling_;
  std::map<std::string, std::vector<std::int64_t>> shapes_;
  std::string theirs_, ours_;
  std::vector<ForeignTensor> tensors_;
};

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

}  // namespace

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
  reader.settings(kSettings, c);
  if (null_kv_heads) c.kv_heads = c.heads;
  c.mamba_dt_max = 0;
  check_time_step_limit(reader, c.mamba_dt_min);
  if (!reader.failed()) reader.add(validate(c, LayoutSizes{}, where), names_in_file(kSettings));
  reader.throw_if_failed();
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
  for (const char letter : layer_letters(c))
    for (const LayerType& type : kLayerTypes)
      if (type.letter == letter) json["layers_block_type"].push_back(type.name);
  write_settings(kSettings, c, json);
  json["tie_word_embeddings"] = false;
  return json;
}

std::vector<ForeignTensor> nemotron_h_tensors(const HybridLmConfig& config, const NemotronHSpelling& spelling) {
  return TensorList(config, spelling).run();
}

std::vector<std::string> nemotron_h_ignorable() { return {"mtp."}; }

}  // namespace braid
