#include "models/audio_config.h"

namespace braid {

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

}  // namespace braid
