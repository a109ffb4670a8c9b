#include "models/clip_config.h"

#include <algorithm>

namespace braid {

void describe(Fields& fields, ClipConfig& c) {
  fields.field("hidden", c.hidden, "width");
  fields.field("layers", c.layers, "transformer layers of the whole model");
  fields.field("heads", c.heads, "attention heads");
  fields.field("ffn", c.ffn, "inner width of the MLP");
  fields.field("feature_layer", c.feature_layer,
               "the layer that outputs the features: -1 is the last, -2 the one before");
  fields.field("image_side", c.image_side, "side of every image in pixels");
  fields.field("patch", c.patch, "side of a patch in pixels");
  fields.field("channels", c.channels, "colour channels");
  fields.field("norm_eps", c.norm_eps, "epsilon of every LayerNorm");
  fields.field("init_std", c.init_std, "standard deviation of initial weights");
  fields.choice("gelu", c.gelu, {"quick", "erf", "tanh"},
                "x * sigmoid(1.702 x), the exact activation, or its tanh form");
}

EncoderLayersConfig layers_of(const ClipConfig& c) {
  return {.hidden = c.hidden,
          .layers = c.feature_layer < 0 ? c.layers + 1 + c.feature_layer : c.feature_layer,
          .heads = c.heads,
          .ffn = c.ffn,
          .norm_eps = c.norm_eps,
          .init_std = c.init_std,
          .gelu = c.gelu};
}

std::vector<ParamSpec> declare_parameters(const ClipConfig& c, int pp) {
  const std::int64_t positions = std::int64_t{c.patch_side()} * c.patch_side() + 1;
  const InitRule normal = {InitRule::Normal, c.init_std};
  std::vector<ParamSpec> specs = {
      {.name = "class_token", .shape = {1, 1, c.hidden}, .init = normal},
      {.name = "position_embeddings.weight", .shape = {positions, c.hidden}, .init = normal},
      {.name = "conv1.weight", .shape = {c.hidden, c.channels, c.patch, c.patch}, .tp_dim = 0, .init = normal}};
  add_layer_norm("ln_pre", c.hidden, 0, specs);
  add_layers(layers_of(c), pp, specs);
  return specs;
}

std::vector<Problem> validate(const ClipConfig& c, const LayoutSizes& layout, const std::string& where) {
  Checks checks(where);
  checks.size("layers", c.layers, kMostLayers);
  checks.size("image_side", c.image_side, 1 << 16);
  checks.size("patch", c.patch, 1 << 10);
  checks.size("channels", c.channels, 1 << 10);
  if (const int last = layers_of(c).layers; c.layers >= 1 && (last < 1 || last > c.layers))
    checks.add("feature_layer", fmt::format("feature_layer={} is not one of the {} layers", c.feature_layer, c.layers),
               fmt::format("use 1 to {}, or -1 (the last) to {}", c.layers, -c.layers));
  EncoderLayersConfig layers = layers_of(c);
  if (layers.layers < 1) layers.layers = std::max(layout.stages(), 1);  // reported above
  check_layer_sizes(layers, checks);
  check_layer_splits(layers, layout, "CLIP", checks);
  return checks.take();
}

}  // namespace braid
