#include "models/encoder_configs.h"

#include <algorithm>
#include <cmath>

#include "models/config_parts.h"

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

// --- RADIO

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

// --- CLIP

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

// --- audio

void describe(Fields& fields, AudioConfig& c) {
  fields.field("mels", c.mels, "channels of an input frame");
  fields.field("hidden", c.hidden, "width");
  fields.field("layers", c.layers, "transformer layers");
  fields.field("heads", c.heads, "attention heads");
  fields.field("ffn", c.ffn, "inner width of the MLP");
  fields.field("stack", c.stack, "encoded frames per token; each covers two input frames");
  fields.field("norm_eps", c.norm_eps, "epsilon of every LayerNorm");
  fields.field("init_std", c.init_std, "standard deviation of initial weights");
}

EncoderLayersConfig layers_of(const AudioConfig& c) {
  return {.hidden = c.hidden,
          .layers = c.layers,
          .heads = c.heads,
          .ffn = c.ffn,
          .norm_eps = c.norm_eps,
          .init_std = c.init_std};
}

std::vector<ParamSpec> declare_parameters(const AudioConfig& c, int pp) {
  std::vector<ParamSpec> specs = {{.name = "embedder.weight",
                                   .shape = {c.hidden, 2 * std::int64_t{c.mels}},
                                   .tp_dim = 0,
                                   .init = {InitRule::Normal, c.init_std}},
                                  {.name = "embedder.bias", .shape = {c.hidden}, .tp_dim = 0}};
  add_layers(layers_of(c), pp, specs);
  add_layer_norm("decoder.final_layernorm", c.hidden, pp - 1, specs);
  return specs;
}

std::vector<Problem> validate(const AudioConfig& c, const LayoutSizes& layout, const std::string& where) {
  Checks checks(where);
  checks.size("mels", c.mels);
  checks.size("stack", c.stack, 1 << 10);
  check_layer_sizes(layers_of(c), checks);
  if (c.hidden >= 1 && (c.hidden % 2 != 0 || c.hidden < 4))
    checks.add("hidden", fmt::format("hidden={} cannot hold pairs of sines and cosines", c.hidden),
               "use an even width of 4 or more");
  check_layer_splits(layers_of(c), layout, "the audio encoder", checks);
  return checks.take();
}

// --- the projector

void describe(Fields& fields, ProjectorConfig& c) {
  fields.choice("kind", c.kind, {"affine", "mlp"}, "one linear map, or two with a squared ReLU between");
  fields.field("input", c.input, "width of the encoder's features");
  fields.field("hidden", c.hidden, "inner width of the mlp");
  fields.field("output", c.output, "width of the language model");
  fields.field("init_std", c.init_std, "standard deviation of initial weights");
}

std::vector<ParamSpec> declare_parameters(const ProjectorConfig& c, int stages) {
  const InitRule normal = {InitRule::Normal, c.init_std};
  std::vector<ParamSpec> specs;
  if (c.kind == "affine")
    specs = {{.name = "encoder.weight", .shape = {c.output, c.input}, .tp_dim = 0, .init = normal}};
  else
    specs = {{.name = "encoder.linear_fc1.weight", .shape = {c.hidden, c.input}, .tp_dim = 0, .init = normal},
             {.name = "encoder.linear_fc2.weight", .shape = {c.output, c.hidden}, .tp_dim = 1, .init = normal}};
  for (ParamSpec& spec : specs) spec.stage = stages - 1;
  return specs;
}

std::vector<Problem> validate(const ProjectorConfig& c, const LayoutSizes& layout, const std::string& where) {
  Checks checks(where);
  checks.size("input", c.input);
  checks.size("output", c.output);
  const bool affine = c.kind == "affine";
  if (!affine) checks.size("hidden", c.hidden);
  checks.divides(affine ? "output" : "hidden", affine ? c.output : c.hidden, layout.tp,
                 fmt::format("tp={}", layout.tp));
  return checks.take();
}

}  // namespace braid
