#include "models/radio_config.h"

#include <cmath>

namespace braid {

void describe(Fields& fields, RadioConfig& c) {
  fields.field("hidden", c.hidden, "width");
  fields.field("layers", c.layers, "transformer layers");
  fields.field("heads", c.heads, "attention heads");
  fields.field("ffn", c.ffn, "inner width of the MLP");
  fields.field("patch", c.patch, "side of a patch in pixels");
  fields.field("channels", c.channels, "colour channels");
  fields.field("position_side", c.position_side, "side of the position table in patches");
  fields.field("class_tokens", c.class_tokens, "class and register tokens in front of each image");
  fields.field("norm_eps", c.norm_eps, "epsilon of every LayerNorm");
  fields.field("init_std", c.init_std, "standard deviation of initial weights");
  fields.choice("gelu", c.gelu, {"erf", "tanh"}, "exact activation, or its tanh form");
  fields.field("qkv_bias", c.qkv_bias, "whether query, key and value have a bias");
  fields.field("layer_scale", c.layer_scale, "whether residual branches have a factor per channel");
  fields.field("final_norm", c.final_norm, "whether a LayerNorm follows the last layer");
  fields.field("normalize_pixels", c.normalize_pixels, "whether the model normalises its input");
}

EncoderLayersConfig layers_of(const RadioConfig& c) {
  return {.hidden = c.hidden,
          .layers = c.layers,
          .heads = c.heads,
          .ffn = c.ffn,
          .norm_eps = c.norm_eps,
          .init_std = c.init_std,
          .gelu = c.gelu,
          .qkv_bias = c.qkv_bias,
          .layer_scale = c.layer_scale};
}

std::vector<ParamSpec> declare_parameters(const RadioConfig& c, int pp) {
  const std::int64_t positions = std::int64_t{c.position_side} * c.position_side;
  const std::int64_t pixels = std::int64_t{c.channels} * c.patch * c.patch;
  const InitRule unit = {InitRule::Normal, 1},
                 position = {InitRule::Normal, 1 / std::sqrt(static_cast<double>(c.hidden))};
  std::vector<ParamSpec> specs;
  if (c.normalize_pixels)
    for (const char* name : {"input_conditioner.norm_mean", "input_conditioner.norm_std"})
      specs.push_back({.name = name,
                       .shape = {c.channels, 1, 1},
                       .init = {name == std::string("input_conditioner.norm_std") ? InitRule::Ones : InitRule::Zeros},
                       .trainable = false});
  specs.push_back({.name = "class_token", .shape = {c.class_tokens, c.hidden}, .init = unit});
  specs.push_back({.name = "position_embeddings", .shape = {1, positions, c.hidden}, .init = position});
  specs.push_back({.name = "embedder.weight", .shape = {c.hidden, pixels}, .tp_dim = 0, .init = unit});
  add_layers(layers_of(c), pp, specs);
  if (c.final_norm) add_layer_norm("decoder.final_layernorm", c.hidden, pp - 1, specs);
  return specs;
}

std::vector<Problem> validate(const RadioConfig& c, const LayoutSizes& layout, const std::string& where) {
  Checks checks(where);
  check_layer_sizes(layers_of(c), checks);
  checks.size("patch", c.patch, 1 << 10);
  checks.size("channels", c.channels, 1 << 10);
  checks.size("position_side", c.position_side, 1 << 16);
  if (c.class_tokens != 0) checks.size("class_tokens", c.class_tokens);
  check_layer_splits(layers_of(c), layout, "RADIO", checks);
  return checks.take();
}

}  // namespace braid
