#include "models/radio_config.h"

#include <cmath>

#include "models/checks.h"

namespace braid {
namespace {

void add_layer(const RadioConfig& c, int layer, int stage, std::vector<ParamSpec>& specs) {
  const std::string prefix = fmt::format("decoder.layers.{}.", layer);
  const InitRule normal = {InitRule::Normal, c.init_std}, ones = {InitRule::Ones};
  const InitRule residual = {InitRule::Normal, c.init_std / std::sqrt(2.0 * c.layers)};  // two branches a layer
  const auto add = [&](ParamSpec spec) {
    spec.name = prefix + spec.name;
    spec.stage = stage;
    specs.push_back(std::move(spec));
  };
  const auto add_norm = [&](const std::string& where) {
    add({.name = where + ".layer_norm_weight", .shape = {c.hidden}, .init = ones});
    add({.name = where + ".layer_norm_bias", .shape = {c.hidden}});
  };
  const std::int64_t hidden = c.hidden, qkv = 3 * hidden, ffn = c.ffn;
  add_norm("self_attention.linear_qkv");
  add({.name = "self_attention.linear_qkv.weight", .shape = {qkv, hidden}, .tp_dim = 0, .init = normal});
  if (c.qkv_bias) add({.name = "self_attention.linear_qkv.bias", .shape = {qkv}, .tp_dim = 0});
  add({.name = "self_attention.linear_proj.weight", .shape = {hidden, hidden}, .tp_dim = 1, .init = residual});
  add({.name = "self_attention.linear_proj.bias", .shape = {hidden}});
  if (c.layer_scale) add({.name = "self_attention.layer_scale", .shape = {hidden}, .init = ones});
  add_norm("mlp.linear_fc1");
  add({.name = "mlp.linear_fc1.weight", .shape = {ffn, hidden}, .tp_dim = 0, .init = normal});
  add({.name = "mlp.linear_fc1.bias", .shape = {ffn}, .tp_dim = 0});
  add({.name = "mlp.linear_fc2.weight", .shape = {hidden, ffn}, .tp_dim = 1, .init = residual});
  add({.name = "mlp.linear_fc2.bias", .shape = {hidden}});
  if (c.layer_scale) add({.name = "mlp.layer_scale", .shape = {hidden}, .init = ones});
}

}  // namespace

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

std::vector<int> stage_bounds(const RadioConfig& config, int pp) {
  std::vector<int> bounds;
  for (int stage = 0; stage <= pp; ++stage) bounds.push_back(config.layers * stage / pp);
  return bounds;
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
  const std::vector<int> bounds = stage_bounds(c, pp);
  for (int stage = 0; stage < pp; ++stage)
    for (int layer = bounds[stage]; layer < bounds[stage + 1]; ++layer) add_layer(c, layer, stage, specs);
  if (c.final_norm) {
    specs.push_back(
        {.name = "decoder.final_layernorm.weight", .shape = {c.hidden}, .stage = pp - 1, .init = {InitRule::Ones}});
    specs.push_back({.name = "decoder.final_layernorm.bias", .shape = {c.hidden}, .stage = pp - 1});
  }
  return specs;
}

std::vector<Problem> validate(const RadioConfig& c, const LayoutSizes& layout, const std::string& where) {
  Checks checks(where);
  checks.size("hidden", c.hidden);
  checks.size("layers", c.layers, kMostLayers);
  checks.size("heads", c.heads);
  checks.size("ffn", c.ffn);
  checks.size("patch", c.patch, 1 << 10);
  checks.size("channels", c.channels, 1 << 10);
  checks.size("position_side", c.position_side, 1 << 16);
  if (c.class_tokens != 0) checks.size("class_tokens", c.class_tokens);
  if (checks.failed()) return checks.take();
  const std::string tp = fmt::format("tp={}", layout.tp);
  checks.divides("hidden", c.hidden, c.heads, fmt::format("heads={}", c.heads));
  checks.divides("heads", c.heads, layout.tp, tp);
  checks.divides("hidden", c.hidden, layout.tp, tp);
  checks.divides("ffn", c.ffn, layout.tp, tp);
  if (layout.cp > 1) checks.add("layers", fmt::format("RADIO does not run with cp={}", layout.cp), "use cp=1");
  if (layout.pp > c.layers)
    checks.add("layers", fmt::format("{} layers cannot fill pp={} stages", c.layers, layout.pp),
               fmt::format("use pp={} or less", c.layers));
  return checks.take();
}

}  // namespace braid
