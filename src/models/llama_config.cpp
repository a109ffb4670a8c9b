#include "models/llama_config.h"

#include <cmath>

#include "models/config_parts.h"

namespace braid {
namespace {

void add_layer(const LlamaConfig& c, int layer, int stage, std::vector<ParamSpec>& specs) {
  const InitRule normal = {InitRule::Normal, c.init_std}, ones = {InitRule::Ones};
  const InitRule residual = {InitRule::Normal, c.init_std / std::sqrt(2.0 * c.layers)};  // two branches per layer
  const std::int64_t hidden = c.hidden, ffn = c.ffn, query = std::int64_t{c.heads} * c.head_dim;
  const std::int64_t key_value = 2 * std::int64_t{c.kv_heads} * c.head_dim;
  const auto add = [&](ParamSpec spec) {
    spec.name = fmt::format("decoder.layers.{}.{}", layer, spec.name);
    spec.stage = stage;
    specs.push_back(std::move(spec));
  };
  add({.name = "self_attention.linear_qkv.layer_norm_weight", .shape = {hidden}, .init = ones});
  add({.name = "self_attention.linear_qkv.weight", .shape = {query + key_value, hidden}, .tp_dim = 0, .init = normal});
  add({.name = "self_attention.linear_proj.weight", .shape = {hidden, query}, .tp_dim = 1, .init = residual});
  add({.name = "mlp.linear_fc1.layer_norm_weight", .shape = {hidden}, .init = ones});
  add({.name = "mlp.linear_fc1.weight",
       .shape = {2 * ffn, hidden},
       .tp_dim = 0,
       .tp_blocks = {ffn, ffn},
       .init = normal});
  add({.name = "mlp.linear_fc2.weight", .shape = {hidden, ffn}, .tp_dim = 1, .init = residual});
}

void check_sizes(const LlamaConfig& c, Checks& checks) {
  checks.size("layers", c.layers, kMostLayers);
  checks.size("hidden", c.hidden);
  checks.size("vocab", c.vocab, kMostVocab);
  checks.size("heads", c.heads);
  checks.size("kv_heads", c.kv_heads);
  checks.size("head_dim", c.head_dim);
  checks.size("ffn", c.ffn);
  if (c.head_dim > 0 && c.head_dim % 2 != 0)
    checks.add("head_dim", fmt::format("head_dim={} is odd; rotary embedding rotates pairs of channels", c.head_dim),
               "use an even number");
  if (!(c.rope_theta > 0 && std::isfinite(c.rope_theta)))
    checks.add("rope_theta", fmt::format("rope_theta={} must be more than 0", c.rope_theta), "use e.g. 10000");
  if (!(c.norm_eps >= 0))
    checks.add("norm_eps", fmt::format("norm_eps={} must be 0 or more", c.norm_eps), "use e.g. 1e-5");
}

void check_splits(const LlamaConfig& c, const LayoutSizes& layout, Checks& checks) {
  const std::string tp = fmt::format("tp={}", layout.tp);
  checks.divides("vocab", c.vocab, layout.tp, tp);
  checks.grouped_heads({"heads", c.heads}, {"kv_heads", c.kv_heads}, layout);
  checks.divides("ffn", c.ffn, layout.tp, tp);
  checks.stages("layers", c.layers, layout);
  if (c.tie_embeddings && layout.pp > 1)
    checks.add("tie_embeddings",
               fmt::format("with pp={} the output layer and the embedding are on different stages", layout.pp),
               "use pp=1, or tie_embeddings: false");
}

}  // namespace

void describe(Fields& fields, LlamaConfig& c) {
  fields.field("layers", c.layers, "decoder layers");
  fields.field("hidden", c.hidden, "width of the residual stream");
  fields.field("vocab", c.vocab, "vocabulary size");
  fields.field("heads", c.heads, "query heads of attention");
  fields.field("kv_heads", c.kv_heads, "key/value heads of attention");
  fields.field("head_dim", c.head_dim, "width of an attention head");
  fields.field("ffn", c.ffn, "inner width of the MLP");
  fields.field("rope_theta", c.rope_theta, "base of the rotary embedding");
  fields.field("norm_eps", c.norm_eps, "epsilon of every RMSNorm");
  fields.field("init_std", c.init_std, "standard deviation of initial weights");
  fields.field("tie_embeddings", c.tie_embeddings, "whether the output layer shares the embedding's weight");
}

std::vector<int> stage_bounds(const LlamaConfig& config, int pp) { return even_stages(config.layers, pp); }

std::vector<ParamSpec> declare_parameters(const LlamaConfig& c, int pp) {
  const InitRule normal = {InitRule::Normal, c.init_std};
  const std::vector<std::int64_t> by_token = {c.vocab, c.hidden};
  std::vector<ParamSpec> specs = {
      {.name = "embedding.word_embeddings.weight", .shape = by_token, .tp_dim = 0, .init = normal}};
  const std::vector<int> bounds = stage_bounds(c, pp);
  for (int stage = 0; stage < pp; ++stage)
    for (int layer = bounds[stage]; layer < bounds[stage + 1]; ++layer) add_layer(c, layer, stage, specs);
  specs.push_back(
      {.name = "decoder.final_layernorm.weight", .shape = {c.hidden}, .stage = pp - 1, .init = {InitRule::Ones}});
  if (!c.tie_embeddings)
    specs.push_back({.name = "output_layer.weight", .shape = by_token, .tp_dim = 0, .stage = pp - 1, .init = normal});
  return specs;
}

std::vector<Problem> validate(const LlamaConfig& config, const LayoutSizes& layout, const std::string& where) {
  Checks checks(where);
  check_sizes(config, checks);
  check_splits(config, layout, checks);
  return checks.take();
}

}  // namespace braid
