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

}  // namespace braid
