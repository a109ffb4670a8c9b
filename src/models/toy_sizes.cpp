#include "models/toy_sizes.h"

namespace braid {
namespace {

using Keys = std::vector<std::string>;

Keys keys_of(const LlamaConfig&) { return {"layers", "vocab", "heads", "kv_heads", "head_dim", "ffn"}; }

// Only the layers that the pattern has need sizes.
Keys keys_of(const HybridLmConfig& config) {
  Keys keys = {"pattern", "vocab"};
  const auto add = [&](char letter, const Keys& more) {
    if (config.pattern.find(letter) != std::string::npos) keys.insert(keys.end(), more.begin(), more.end());
  };
  add('*', {"heads", "kv_heads", "head_dim"});
  add('M', {"mamba_heads", "mamba_head_dim", "mamba_groups", "mamba_state", "mamba_chunk"});
  add('-', {"ffn"});
  add('E', {"experts", "top_k", "expert_ffn", "shared_ffn"});
  return keys;
}

Keys keys_of(const RadioConfig&) { return {"layers", "heads", "ffn", "position_side", "class_tokens"}; }
Keys keys_of(const ClipConfig&) { return {"layers", "heads", "ffn", "image_side", "patch"}; }
Keys keys_of(const AudioConfig&) { return {"layers", "heads", "ffn", "mels", "stack"}; }

using Widths = std::vector<std::pair<const char*, int>>;  // by key

Widths widths_of(const LlamaConfig& c) { return {{"ffn", c.ffn}, {"heads", c.heads * c.head_dim}}; }
Widths widths_of(const HybridLmConfig& c) {
  return {{"ffn", c.ffn},
          {"heads", c.heads * c.head_dim},
          {"mamba_heads", c.mamba_heads * c.mamba_head_dim},
          {"expert_ffn", c.expert_ffn},
          {"shared_ffn", c.shared_ffn}};
}
template <class Encoder>
Widths widths_of(const Encoder& c) {
  return {{"ffn", c.ffn}};
}

std::string too_wide_key(const auto& config) {
  constexpr int kMostTimesHidden = 8;  // no model has more
  for (const auto& [key, width] : widths_of(config))
    if (width / kMostTimesHidden > config.hidden) return key;
  return "";
}

}  // namespace

bool is_toy(const Provider& provider) { return provider.name.starts_with("tiny-"); }

Keys size_keys(const LanguageConfig& config) {
  return std::visit([](const auto& c) { return keys_of(c); }, config);
}

// The projector's input and output are checked against the encoder and the language model.
Keys size_keys(const EncoderConfig& config) {
  Keys keys;
  for (const std::string& key : std::visit([](const auto& c) { return keys_of(c); }, config.model))
    keys.push_back("encoder." + key);
  if (config.projector.kind == "mlp") keys.push_back("projector.hidden");
  return keys;
}

std::string key_of_wider_model(const LanguageConfig& config) {
  return std::visit([](const auto& c) { return too_wide_key(c); }, config);
}

std::string key_of_wider_model(const EncoderConfig& config) {
  const std::string key = std::visit([](const auto& c) { return too_wide_key(c); }, config.model);
  return key.empty() ? "" : "encoder." + key;
}

}  // namespace braid
