#include "models/encoder_layers_config.h"

#include <cmath>

#include "models/even_stages.h"

namespace braid {
namespace {

void add_layer(const EncoderLayersConfig& c, int layer, int stage, std::vector<ParamSpec>& specs) {
  const std::string prefix = fmt::format("decoder.layers.{}.", layer);
  const InitRule normal = {InitRule::Normal, c.init_std}, ones = {InitRule::Ones};
  const InitRule residual = {InitRule::Normal, c.init_std / std::sqrt(2.0 * c.layers)};  // two branches per layer
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

void add_layers(const EncoderLayersConfig& config, int pp, std::vector<ParamSpec>& specs) {
  const std::vector<int> bounds = even_stages(config.layers, pp);
  for (int stage = 0; stage < pp; ++stage)
    for (int layer = bounds[stage]; layer < bounds[stage + 1]; ++layer) add_layer(config, layer, stage, specs);
}

void add_layer_norm(const std::string& name, int width, int stage, std::vector<ParamSpec>& specs) {
  specs.push_back({.name = name + ".weight", .shape = {width}, .stage = stage, .init = {InitRule::Ones}});
  specs.push_back({.name = name + ".bias", .shape = {width}, .stage = stage});
}

void check_layer_sizes(const EncoderLayersConfig& c, Checks& checks) {
  checks.size("hidden", c.hidden);
  checks.size("layers", c.layers, kMostLayers);
  checks.size("heads", c.heads);
  checks.size("ffn", c.ffn);
}

void check_layer_splits(const EncoderLayersConfig& c, const LayoutSizes& layout, const char* model, Checks& checks) {
  const std::string tp = fmt::format("tp={}", layout.tp);
  checks.divides("hidden", c.hidden, c.heads, fmt::format("heads={}", c.heads));
  checks.divides("heads", c.heads, layout.tp, tp);
  checks.divides("hidden", c.hidden, layout.tp, tp);
  checks.divides("ffn", c.ffn, layout.tp, tp);
  if (layout.cp > 1) checks.add("layers", fmt::format("{} does not support cp={}", model, layout.cp), "use cp=1");
  checks.stages("layers", c.layers, layout);
}

}  // namespace braid
