#include "models/configs.h"
#include "base/strings.h"

namespace braid {
namespace {

// Far more than any model has, and few enough tensors to list.
constexpr std::int64_t kMostExperts = 1 << 22;

using Shape = std::vector<std::int64_t>;

// Parameters in the order of their declaration, each with the current stage and the current prefix of its name.
struct ParamList {
  // The more branches add to the residual stream, the smaller their outputs start.
  ParamList(double init_std, int branches)
      : normal{InitRule::Normal, init_std}, residual{InitRule::Normal,
                                                     init_std / std::sqrt(static_cast<double>(branches))} {}

  void add(ParamSpec spec) {
    spec.name = prefix + spec.name;
    spec.stage = stage;
    specs.push_back(std::move(spec));
  }
  void add(const std::string& name, Shape shape, const InitRule& init, int tp_dim = -1) {
    add({.name = name, .shape = std::move(shape), .tp_dim = tp_dim, .init = init});
  }
  void add_layer_norm(const std::string& name, int width, const char* separator = ".") {
    add(name + separator + "weight", {width}, ones);
    add(name + separator + "bias", {width}, {});
  }

  // Calls declare(n) for each layer n, with its stage and prefix; then the last stage is the current one.
  template <class Declare>
  void add_layers(const std::vector<int>& bounds, const Declare& declare) {
    const int stages = static_cast<int>(bounds.size()) - 1;
    for (stage = 0; stage < stages; ++stage)
      for (int layer = bounds[stage]; layer < bounds[stage + 1]; ++layer) {
        prefix = fmt::format("decoder.layers.{}.", layer);
        declare(layer);
      }
    stage = stages - 1;
    prefix.clear();
  }

  const InitRule normal, residual, ones = {InitRule::Ones};
  std::string prefix{};
  int stage = 0;
  std::vector<ParamSpec> specs{};
};

char visible(char c) { return c > 31 && c < 127 ? c : '?'; }

// A pattern with a caret below the letter at `place`; a long pattern is shortened around it.
std::string pointed_at(const std::string& pattern, std::size_t place) {
  constexpr std::size_t kShown = 100;
  const std::size_t begin = pattern.size() > kShown && place > kShown / 2 ? place - kShown / 2 : 0;
  std::string shown = (begin > 0 ? "..." : "") + pattern.substr(begin, kShown);
  for (char& c : shown) c = visible(c);
  if (begin + kShown < pattern.size()) shown += "...";
  return fmt::format("    {}\n    {:>{}}", shown, '^', (begin > 0 ? 3 : 0) + place - begin + 1);
}

}  // namespace

std::vector<int> even_stages(int layers, int pp) {
  std::vector<int> bounds;
  for (int stage = 0; stage <= pp; ++stage) bounds.push_back(static_cast<int>(std::int64_t{layers} * stage / pp));
  return bounds;
}

// --- checks

void Checks::size(const char* field, std::int64_t value, std::int64_t most) {
  if (value < 1) add(field, fmt::format("{}={} must be at least 1", field, value), "use 1 or more");
  if (value > most) add(field, fmt::format("{}={} is too large", field, value), fmt::format("use {} or less", most));
}

void Checks::divides(const char* field, std::int64_t value, const char* by, std::int64_t parts) {
  if (parts < 1 || value < 1 || value % parts == 0) return;
  std::string fix = nearest_of(by, divisors(value), parts);
  // A vocabulary is padded; other sizes are those of the model.
  if (std::string_view(field) == "vocab") fix += fmt::format(", or pad it: vocab={}", (value / parts + 1) * parts);
  add(field, fmt::format("{}={} is not divisible by {}={}", field, value, by, parts), std::move(fix));
}

void Checks::grouped_heads(const Heads& heads, const Heads& groups) {
  const auto& [tp, cp] = std::pair(layout_.tp, layout_.cp);
  divides(heads.field, heads.count, groups.field, groups.count);
  divides_tp(groups.field, groups.count);
  if (tp < 1 || cp < 1 || groups.count < 1 || heads.count % groups.count != 0 || groups.count % tp != 0) return;
  const std::int64_t own_heads = heads.count / tp, own = groups.count / tp;
  if (own % cp == 0 || (cp % own == 0 && own_heads % cp == 0)) return;
  add(groups.field, fmt::format("cp={} ranks cannot share {} {} in {} groups evenly", cp, own_heads, heads.field, own),
      fmt::format("cp must divide {}, or be a multiple of {} that divides {}", own, own, own_heads));
}

void Checks::norm_eps(double eps) {
  if (!(eps >= 0)) add("norm_eps", fmt::format("norm_eps={} must be 0 or more", eps), "use e.g. 1e-5");
}

void Checks::add(const char* field, std::string what, std::string fix) {
  problems_.push_back({std::move(what), where_ + "." + field, std::move(fix)});
}

void Checks::stages(const char* field, int layers) {
  if (layout_.stages() <= layers || layers < 1) return;
  const bool chunks = layout_.vpp > 1;
  add(field,
      fmt::format("{} cannot fill pp={}{} stages", counted(layers, "layer"), layout_.pp,
                  chunks ? fmt::format(" x vpp={}", layout_.vpp) : ""),
      fmt::format("use {}={} or less", chunks ? "vpp" : "pp", chunks ? std::max(layers / layout_.pp, 1) : layers));
}

// --- the hybrid language model

namespace {

class HybridDeclaration : public ParamList {
 public:
  explicit HybridDeclaration(const HybridLmConfig& c)
      : ParamList(c.init_std, static_cast<int>(layer_letters(c).size())), c_(c) {}

  void add_layer(char letter) {
    switch (letter) {
      case 'M': return add_mamba();
      case '*': return add_attention();
      case 'E': return add_moe();
      case '-': add_norm("mlp.linear_fc1.layer_norm_weight"); return add_mlp("mlp.", c_.ffn);
      default: throw_check_failed(__FILE__, __LINE__, fmt::format("'{}' is not a layer", letter));
    }
  }
  void add_norm(const char* name) { add(name, {c_.hidden}, ones); }

 private:
  // A weight of a linear map, whose products may be in fp8.
  void add_map(ParamSpec spec) {
    spec.fp8 = c_.fp8 == Fp8Mode::Rowwise;
    add(std::move(spec));
  }
  void add_map(const std::string& name, std::int64_t out, std::int64_t in, int tp_dim, const InitRule& init) {
    add_map({.name = name, .shape = {out, in}, .tp_dim = tp_dim, .init = init});
  }

  void add_mamba() {
    const std::int64_t inner = std::int64_t{c_.mamba_heads} * c_.mamba_head_dim, heads = c_.mamba_heads;
    const std::int64_t states = std::int64_t{c_.mamba_groups} * c_.mamba_state;
    const std::int64_t conv = inner + 2 * states, kernel = c_.mamba_conv;
    const InitRule conv_init = {InitRule::Uniform, 1 / std::sqrt(static_cast<double>(kernel))};
    const auto add_conv = [&](const char* name, Shape shape) {
      add({.name = name,
           .shape = std::move(shape),
           .tp_dim = 0,
           .tp_blocks = {inner, states, states},
           .block_names = {"x", "B", "C"},
           .init = conv_init});
    };
    add_norm("mixer.in_proj.layer_norm_weight");
    add_map({.name = "mixer.in_proj.weight",
             .shape = {inner + conv + heads, c_.hidden},
             .tp_dim = 0,
             .tp_blocks = {inner, inner, states, states, heads},
             .block_names = {"z", "x", "B", "C", "dt"},
             .init = normal});
    add_conv("mixer.conv1d.weight", {conv, 1, kernel});
    if (c_.mamba_conv_bias) add_conv("mixer.conv1d.bias", {conv});
    add("mixer.A_log", {heads}, {InitRule::ALog}, 0);
    add("mixer.D", {heads}, ones, 0);
    add("mixer.dt_bias", {heads}, {InitRule::DtBias}, 0);
    add("mixer.norm.weight", {inner}, ones, 0);
    add_map("mixer.out_proj.weight", c_.hidden, inner, 1, residual);
  }

  void add_attention() {
    const std::int64_t query = std::int64_t{c_.heads} * c_.head_dim;
    const std::int64_t key_value = 2 * std::int64_t{c_.kv_heads} * c_.head_dim;
    add_norm("self_attention.linear_qkv.layer_norm_weight");
    add_map("self_attention.linear_qkv.weight", query + key_value, c_.hidden, 0, normal);
    add_map("self_attention.linear_proj.weight", c_.hidden, query, 1, residual);
  }

  void add_moe() {
    const std::int64_t experts = c_.experts, ffn = c_.expert_ffn, hidden = c_.hidden;
    add_norm("pre_mlp_layernorm.weight");
    add("mlp.router.weight", {experts, hidden}, normal);
    add({.name = "mlp.router.expert_bias", .shape = {experts}, .trainable = false});
    const auto add_experts = [&](const char* name, Shape shape, int tp_dim, const InitRule& init) {
      add_map({.name = name, .shape = std::move(shape), .tp_dim = tp_dim, .expert = true, .init = init});
    };
    add_experts("mlp.experts.experts.linear_fc1.weight", {experts, ffn, hidden}, 1, normal);
    add_experts("mlp.experts.experts.linear_fc2.weight", {experts, hidden, ffn}, 2, residual);
    if (c_.shared_ffn > 0) add_mlp("mlp.shared_experts.", c_.shared_ffn);
  }

  void add_mlp(const std::string& where, int ffn) {
    add_map(where + "linear_fc1.weight", ffn, c_.hidden, 0, normal);
    add_map(where + "linear_fc2.weight", c_.hidden, ffn, 1, residual);
  }

  const HybridLmConfig& c_;
};

void check_pattern(const HybridLmConfig& config, const LayoutSizes& layout, Checks& checks) {
  const std::string& pattern = config.pattern;
  if (const auto problem = pattern_problem(pattern, /*may_have_stages=*/true))
    return checks.add("pattern", problem->what, problem->fix);
  const int layers = static_cast<int>(layer_letters(config).size());
  if (layers == 0) return checks.add("pattern", "the layer pattern has no layers", "add at least one of M, *, E, -");
  const int stages = static_cast<int>(std::ranges::count(pattern, '|')) + 1;
  if (stages > 1 && stages != layout.stages())
    checks.add("pattern",
               fmt::format("the layer pattern has {} pipeline stages, but the layout has pp={}{}", stages, layout.pp,
                           layout.vpp > 1 ? fmt::format(" x vpp={}", layout.vpp) : ""),
               fmt::format("use pp={}, or move the '|' in {}", stages, in_quotes(pattern)));
  if (stages == 1) checks.stages("pattern", layers);
}

void check_sizes(const HybridLmConfig& c, Checks& checks) {
  checks.norm_eps(c.norm_eps);
  checks.size("vocab", c.vocab, kMostVocab);
  checks.size("hidden", c.hidden);
  for (const auto& [letter, key, value, help] : kLayerSizes)
    if (has_layer(c, letter) && !(value == &HybridLmConfig::shared_ffn && c.shared_ffn == 0))
      checks.size(key, c.*value);
  if (std::ranges::count(c.pattern, 'E') * std::int64_t{c.experts} > kMostExperts)
    checks.add("experts", fmt::format("{} experts in each layer are too many", c.experts),
               fmt::format("use {} or less in all layers together", kMostExperts));
  if (has_layer(c, 'E') && c.top_k > c.experts)
    checks.add("top_k", fmt::format("top_k={} experts per token, but there are only {}", c.top_k, c.experts),
               fmt::format("use top_k={} or less", c.experts));
}

void check_splits(const HybridLmConfig& c, const LayoutSizes& layout, Checks& checks) {
  checks.divides_tp("vocab", c.vocab);
  if (has_layer(c, '*')) checks.grouped_heads({"heads", c.heads}, {"kv_heads", c.kv_heads});
  if (has_layer(c, 'M')) checks.grouped_heads({"mamba_heads", c.mamba_heads}, {"mamba_groups", c.mamba_groups});
  if (has_layer(c, '-')) checks.divides_tp("ffn", c.ffn);
  if (!has_layer(c, 'E')) return;
  checks.divides("experts", c.experts, "ep", layout.ep);
  checks.divides("expert_ffn", c.expert_ffn, "expt_tp", layout.expt_tp);
  checks.divides_tp("shared_ffn", c.shared_ffn);
}

// The widths of fp8 products on each rank.
void check_fp8_widths(const HybridLmConfig& c, const LayoutSizes& layout, Checks& checks) {
  const std::int64_t tp = layout.tp, head_dim = c.head_dim, heads = c.heads;
  const std::int64_t inner = std::int64_t{c.mamba_heads} * c.mamba_head_dim;
  const std::int64_t states = std::int64_t{c.mamba_groups} * c.mamba_state;
  struct Width {
    char letter;
    const char *field, *what;
    std::int64_t width;
  };
  constexpr int kMultiple = 16;
  for (const auto& [letter, field, what, width] :
       {Width{'\0', "hidden", "hidden", c.hidden},
        Width{'*', "heads", "the width of a rank's query heads", heads / tp * head_dim},
        Width{'*', "kv_heads", "the width of a rank's projection to queries, keys and values",
              (heads + 2 * c.kv_heads) / tp * head_dim},
        Width{'M', "mamba_heads", "the width of a rank's Mamba2 heads", inner / tp},
        Width{'M', "mamba_heads", "the width of a rank's Mamba2 projection",
              (2 * (inner + states) + c.mamba_heads) / tp},
        Width{'-', "ffn", "a rank's share of ffn", c.ffn / tp},
        Width{'E', "expert_ffn", "a rank's share of expert_ffn", c.expert_ffn / layout.expt_tp},
        Width{'E', "shared_ffn", "a rank's share of shared_ffn", c.shared_ffn / tp}})
    if ((letter == '\0' || has_layer(c, letter)) && width % kMultiple != 0)
      checks.add(field,
                 fmt::format("{} is {}, but widths of fp8 products must be multiples of {}", what, width, kMultiple),
                 "use other sizes or a smaller tp, or model.fp8: off");
}

}  // namespace

bool has_layer(const HybridLmConfig& config, char letter) { return config.pattern.find(letter) != std::string::npos; }

void describe(Fields& fields, HybridLmConfig& c) {
  fields.field("pattern", c.pattern,
               "a letter per layer: M Mamba2, * attention, E experts, - MLP; | starts a pipeline stage");
  fields.field("hidden", c.hidden, "width of the residual stream");
  fields.field("vocab", c.vocab, "vocabulary size");
  fields.field("norm_eps", c.norm_eps, "epsilon of every RMSNorm");
  fields.field("init_std", c.init_std, "standard deviation of initial weights");
  const auto sizes = [&](std::string_view letters) {
    for (const auto& [letter, key, value, help] : kLayerSizes)
      if (letters.find(letter) != letters.npos) fields.field(key, c.*value, help);
  };
  sizes("*M");
  fields.field("mamba_dt_min", c.mamba_dt_min, "lower limit of the time step");
  fields.field("mamba_dt_max", c.mamba_dt_max, "upper limit of the time step, 0: none");
  fields.field("mamba_conv_bias", c.mamba_conv_bias, "whether the convolution has a bias");
  sizes("-E");
  fields.field("router_scaling", c.router_scaling, "factor on the routing weights");
  fields.field("router_normalize", c.router_normalize, "whether a token's routing weights sum to router_scaling");
  fields.field("aux_loss_coeff", c.aux_loss_coeff, "coefficient of the sequence auxiliary loss");
  fields.field("expert_bias_rate", c.expert_bias_rate, "step of the expert bias update");
  fields.field("force_load_balancing", c.force_load_balancing, "route at random, for benchmarks");
}

std::optional<Problem> pattern_problem(const std::string& pattern, bool may_have_stages) {
  if (pattern.size() > kMostLayers)
    return Problem{fmt::format("{} letters are too many for a layer pattern", pattern.size()), "",
                   fmt::format("use {} or less", kMostLayers)};
  for (std::size_t i = 0; i < pattern.size(); ++i)
    if (kLayerLetters.find(pattern[i]) == kLayerLetters.npos && !(may_have_stages && pattern[i] == '|'))
      return Problem{fmt::format("'{}' at position {} of the layer pattern is not a layer:\n{}", visible(pattern[i]),
                                 i + 1, pointed_at(pattern, i)),
                     "",
                     fmt::format("use M (Mamba2), * (attention), E (mixture of experts), - (MLP){}",
                                 may_have_stages ? ", and | between pipeline stages" : "")};
  return std::nullopt;
}

std::string layer_letters(const HybridLmConfig& config) {
  std::string letters = config.pattern;
  std::erase(letters, '|');
  return letters;
}

std::vector<int> stage_bounds(const HybridLmConfig& config, int pp) {
  if (config.pattern.find('|') == std::string::npos)
    return even_stages(static_cast<int>(layer_letters(config).size()), pp);
  std::vector<int> bounds = {0};
  for (const std::string& stage : split(config.pattern, '|'))
    bounds.push_back(bounds.back() + static_cast<int>(stage.size()));
  BRAID_CHECK_EQ(static_cast<int>(bounds.size()), pp + 1, "stages of the pattern {}", config.pattern);
  return bounds;
}

std::vector<ParamSpec> declare_parameters(const HybridLmConfig& c, int pp) {
  HybridDeclaration list(c);
  list.add("embedding.word_embeddings.weight", {c.vocab, c.hidden}, list.normal, 0);
  const std::string letters = layer_letters(c);
  list.add_layers(stage_bounds(c, pp), [&](int layer) { list.add_layer(letters[layer]); });
  list.add_norm("decoder.final_norm.weight");
  list.add("output_layer.weight", {c.vocab, c.hidden}, list.normal, 0);
  return std::move(list.specs);
}

std::vector<Problem> validate(const HybridLmConfig& config, const LayoutSizes& layout, const std::string& where) {
  Checks checks(where, layout);
  check_pattern(config, layout, checks);
  check_sizes(config, checks);
  check_splits(config, layout, checks);
  if (!checks.failed() && config.fp8 == Fp8Mode::Rowwise) check_fp8_widths(config, layout, checks);
  return checks.take();
}

// --- Llama

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

std::vector<ParamSpec> declare_parameters(const LlamaConfig& c, int pp) {
  ParamList list(c.init_std, 2 * c.layers);
  const std::int64_t hidden = c.hidden, ffn = c.ffn, query = std::int64_t{c.heads} * c.head_dim;
  const std::int64_t key_value = 2 * std::int64_t{c.kv_heads} * c.head_dim;
  list.add("embedding.word_embeddings.weight", {c.vocab, hidden}, list.normal, 0);
  list.add_layers(stage_bounds(c, pp), [&](int) {
    list.add("self_attention.linear_qkv.layer_norm_weight", {hidden}, list.ones);
    list.add("self_attention.linear_qkv.weight", {query + key_value, hidden}, list.normal, 0);
    list.add("self_attention.linear_proj.weight", {hidden, query}, list.residual, 1);
    list.add("mlp.linear_fc1.layer_norm_weight", {hidden}, list.ones);
    list.add({.name = "mlp.linear_fc1.weight",
              .shape = {2 * ffn, hidden},
              .tp_dim = 0,
              .tp_blocks = {ffn, ffn},
              .init = list.normal});
    list.add("mlp.linear_fc2.weight", {hidden, ffn}, list.residual, 1);
  });
  list.add("decoder.final_layernorm.weight", {hidden}, list.ones);
  if (!c.tie_embeddings) list.add("output_layer.weight", {c.vocab, hidden}, list.normal, 0);
  return std::move(list.specs);
}

std::vector<Problem> validate(const LlamaConfig& c, const LayoutSizes& layout, const std::string& where) {
  Checks checks(where, layout);
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
  checks.norm_eps(c.norm_eps);
  checks.divides_tp("vocab", c.vocab);
  checks.grouped_heads({"heads", c.heads}, {"kv_heads", c.kv_heads});
  checks.divides_tp("ffn", c.ffn);
  checks.stages("layers", c.layers);
  if (c.tie_embeddings && layout.pp > 1)
    checks.add("tie_embeddings",
               fmt::format("with pp={} the output layer and the embedding are on different stages", layout.pp),
               "use pp=1, or tie_embeddings: false");
  return checks.take();
}

// --- what encoders have in common

namespace {

template <class Config>
void describe_sizes(Fields& fields, Config& c, const char* layers) {
  fields.field("hidden", c.hidden, "width");
  fields.field("layers", c.layers, layers);
  fields.field("heads", c.heads, "attention heads");
  fields.field("ffn", c.ffn, "inner width of the MLP");
}

template <class Config>
void describe_values(Fields& fields, Config& c) {
  fields.field("norm_eps", c.norm_eps, "epsilon of every LayerNorm");
  fields.field("init_std", c.init_std, "standard deviation of initial weights");
}

template <class Config>
EncoderLayersConfig same_sizes(const Config& c) {
  return {.hidden = c.hidden,
          .layers = c.layers,
          .heads = c.heads,
          .ffn = c.ffn,
          .norm_eps = c.norm_eps,
          .init_std = c.init_std};
}

void add_encoder_layers(const EncoderLayersConfig& c, int pp, ParamList& list) {
  const std::int64_t hidden = c.hidden, qkv = 3 * hidden, ffn = c.ffn;
  list.add_layers(even_stages(c.layers, pp), [&](int) {
    list.add_layer_norm("self_attention.linear_qkv", c.hidden, ".layer_norm_");
    list.add("self_attention.linear_qkv.weight", {qkv, hidden}, list.normal, 0);
    if (c.qkv_bias) list.add("self_attention.linear_qkv.bias", {qkv}, {}, 0);
    list.add("self_attention.linear_proj.weight", {hidden, hidden}, list.residual, 1);
    list.add("self_attention.linear_proj.bias", {hidden}, {});
    if (c.layer_scale) list.add("self_attention.layer_scale", {hidden}, list.ones);
    list.add_layer_norm("mlp.linear_fc1", c.hidden, ".layer_norm_");
    list.add("mlp.linear_fc1.weight", {ffn, hidden}, list.normal, 0);
    list.add("mlp.linear_fc1.bias", {ffn}, {}, 0);
    list.add("mlp.linear_fc2.weight", {hidden, ffn}, list.residual, 1);
    list.add("mlp.linear_fc2.bias", {hidden}, {});
    if (c.layer_scale) list.add("mlp.layer_scale", {hidden}, list.ones);
  });
}

void check_layer_sizes(const EncoderLayersConfig& c, Checks& checks) {
  checks.size("hidden", c.hidden);
  checks.size("layers", c.layers, kMostLayers);
  checks.size("heads", c.heads);
  checks.size("ffn", c.ffn);
}

void check_layer_splits(const EncoderLayersConfig& c, const LayoutSizes& layout, const char* model, Checks& checks) {
  checks.divides("hidden", c.hidden, "heads", c.heads);
  checks.divides_tp("heads", c.heads);
  checks.divides_tp("hidden", c.hidden);
  checks.divides_tp("ffn", c.ffn);
  if (layout.cp > 1) checks.add("layers", fmt::format("{} does not support cp={}", model, layout.cp), "use cp=1");
  checks.stages("layers", c.layers);
}

}  // namespace

// --- RADIO

void describe(Fields& fields, RadioConfig& c) {
  describe_sizes(fields, c, "transformer layers");
  fields.field("patch", c.patch, "side of a patch in pixels");
  fields.field("channels", c.channels, "colour channels");
  fields.field("position_side", c.position_side, "side of the position table in patches");
  fields.field("class_tokens", c.class_tokens, "class and register tokens in front of each image");
  describe_values(fields, c);
  fields.choice("gelu", c.gelu, {GeluForm::Erf, GeluForm::Tanh}, "exact activation, or its tanh form");
  fields.field("qkv_bias", c.qkv_bias, "whether query, key and value have a bias");
  fields.field("layer_scale", c.layer_scale, "whether residual branches have a factor per channel");
  fields.field("final_norm", c.final_norm, "whether a LayerNorm follows the last layer");
  fields.field("normalize_pixels", c.normalize_pixels, "whether the model normalises its input");
}

EncoderLayersConfig layers_of(const RadioConfig& c) {
  EncoderLayersConfig layers = same_sizes(c);
  layers.gelu = c.gelu;
  layers.qkv_bias = c.qkv_bias;
  layers.layer_scale = c.layer_scale;
  return layers;
}

std::vector<ParamSpec> declare_parameters(const RadioConfig& c, int pp) {
  const EncoderLayersConfig layers = layers_of(c);
  ParamList list(c.init_std, 2 * layers.layers);
  const std::int64_t positions = std::int64_t{c.position_side} * c.position_side;
  const std::int64_t pixels = std::int64_t{c.channels} * c.patch * c.patch;
  const InitRule unit = {InitRule::Normal, 1};
  const auto add_buffer = [&](const char* name, const InitRule& init) {
    list.add({.name = name, .shape = {c.channels, 1, 1}, .init = init, .trainable = false});
  };
  if (c.normalize_pixels) {
    add_buffer("input_conditioner.norm_mean", {});
    add_buffer("input_conditioner.norm_std", list.ones);
  }
  list.add("class_token", {c.class_tokens, c.hidden}, unit);
  list.add("position_embeddings", {1, positions, c.hidden},
           {InitRule::Normal, 1 / std::sqrt(static_cast<double>(c.hidden))});
  list.add("embedder.weight", {c.hidden, pixels}, unit, 0);
  add_encoder_layers(layers, pp, list);
  if (c.final_norm) list.add_layer_norm("decoder.final_layernorm", c.hidden);
  return std::move(list.specs);
}

std::vector<Problem> validate(const RadioConfig& c, const LayoutSizes& layout, const std::string& where) {
  Checks checks(where, layout);
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
  describe_sizes(fields, c, "transformer layers of the whole model");
  fields.field("feature_layer", c.feature_layer,
               "the layer that outputs the features: -1 is the last, -2 the one before");
  fields.field("image_side", c.image_side, "side of every image in pixels");
  fields.field("patch", c.patch, "side of a patch in pixels");
  fields.field("channels", c.channels, "colour channels");
  describe_values(fields, c);
  fields.choice("gelu", c.gelu, {GeluForm::Quick, GeluForm::Erf, GeluForm::Tanh},
                "x * sigmoid(1.702 x), the exact activation, or its tanh form");
}

EncoderLayersConfig layers_of(const ClipConfig& c) {
  EncoderLayersConfig layers = same_sizes(c);
  layers.layers = c.feature_layer < 0 ? c.layers + 1 + c.feature_layer : c.feature_layer;
  layers.gelu = c.gelu;
  return layers;
}

std::vector<ParamSpec> declare_parameters(const ClipConfig& c, int pp) {
  const EncoderLayersConfig layers = layers_of(c);
  ParamList list(c.init_std, 2 * layers.layers);
  const std::int64_t positions = std::int64_t{c.patch_side()} * c.patch_side() + 1;
  list.add("class_token", {1, 1, c.hidden}, list.normal);
  list.add("position_embeddings.weight", {positions, c.hidden}, list.normal);
  list.add("conv1.weight", {c.hidden, c.channels, c.patch, c.patch}, list.normal, 0);
  list.add_layer_norm("ln_pre", c.hidden);
  add_encoder_layers(layers, pp, list);
  return std::move(list.specs);
}

std::vector<Problem> validate(const ClipConfig& c, const LayoutSizes& layout, const std::string& where) {
  Checks checks(where, layout);
  checks.size("layers", c.layers, kMostLayers);
  checks.size("image_side", c.image_side, 1 << 16);
  checks.size("patch", c.patch, 1 << 10);
  checks.size("channels", c.channels, 1 << 10);
  EncoderLayersConfig layers = layers_of(c);
  if (c.layers >= 1 && (layers.layers < 1 || layers.layers > c.layers))
    checks.add("feature_layer", fmt::format("feature_layer={} is not one of the {} layers", c.feature_layer, c.layers),
               fmt::format("use 1 to {}, or -1 (the last) to {}", c.layers, -c.layers));
  if (layers.layers < 1) layers.layers = std::max(layout.stages(), 1);  // reported above
  check_layer_sizes(layers, checks);
  check_layer_splits(layers, layout, "CLIP", checks);
  return checks.take();
}

// --- audio

void describe(Fields& fields, AudioConfig& c) {
  fields.field("mels", c.mels, "channels of an input frame");
  describe_sizes(fields, c, "transformer layers");
  fields.field("stack", c.stack, "encoded frames per token; each covers two input frames");
  describe_values(fields, c);
}

EncoderLayersConfig layers_of(const AudioConfig& c) { return same_sizes(c); }

std::vector<ParamSpec> declare_parameters(const AudioConfig& c, int pp) {
  ParamList list(c.init_std, 2 * c.layers);
  list.add("embedder.weight", {c.hidden, 2 * std::int64_t{c.mels}}, list.normal, 0);
  list.add("embedder.bias", {c.hidden}, {}, 0);
  add_encoder_layers(layers_of(c), pp, list);
  list.add_layer_norm("decoder.final_layernorm", c.hidden);
  return std::move(list.specs);
}

std::vector<Problem> validate(const AudioConfig& c, const LayoutSizes& layout, const std::string& where) {
  Checks checks(where, layout);
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
  fields.choice("kind", c.kind, "one linear map, or two with a squared ReLU between");
  fields.field("input", c.input, "width of the encoder's features");
  fields.field("hidden", c.hidden, "inner width of the mlp");
  fields.field("output", c.output, "width of the language model");
  fields.field("init_std", c.init_std, "standard deviation of initial weights");
}

std::vector<ParamSpec> declare_parameters(const ProjectorConfig& c, int pp) {
  ParamList list(c.init_std, 1);
  list.stage = pp - 1;
  const bool affine = c.kind == ProjectorKind::Affine;
  list.add(affine ? "encoder.weight" : "encoder.linear_fc1.weight", {affine ? c.output : c.hidden, c.input},
           list.normal, 0);
  if (!affine) list.add("encoder.linear_fc2.weight", {c.output, c.hidden}, list.normal, 1);
  return std::move(list.specs);
}

std::vector<Problem> validate(const ProjectorConfig& c, const LayoutSizes& layout, const std::string& where) {
  Checks checks(where, layout);
  checks.size("input", c.input);
  checks.size("output", c.output);
  const bool affine = c.kind == ProjectorKind::Affine;
  if (!affine) checks.size("hidden", c.hidden);
  checks.divides_tp(affine ? "output" : "hidden", affine ? c.output : c.hidden);
  return checks.take();
}

}  // namespace braid
