#include "models/hybrid_lm_config.h"

#include <algorithm>
#include <cmath>

#include "base/strings.h"
#include "models/config_parts.h"

namespace braid {
namespace {

constexpr std::string_view kLetters = "M*E-";

// Far more than any model has, and few enough tensors to list.
constexpr std::int64_t kMostExperts = 1 << 22;

char visible(char c) { return c > 31 && c < 127 ? c : '?'; }

// Collects the parameters layer by layer.
class Declaration {
 public:
  explicit Declaration(const HybridLmConfig& config)
      : config_(config),
        normal_{InitRule::Normal, config.init_std},
        // The more layers add to the residual stream, the smaller their outputs start.
        residual_{InitRule::Normal, config.init_std / std::sqrt(static_cast<double>(layer_letters(config).size()))} {}

  std::vector<ParamSpec> run(const std::vector<int>& bounds) {
    const int last_stage = static_cast<int>(bounds.size()) - 2;
    const std::string letters = layer_letters(config_);
    add({.name = "embedding.word_embeddings.weight",
         .shape = {config_.vocab, config_.hidden},
         .tp_dim = 0,
         .init = normal_});
    for (stage_ = 0; stage_ <= last_stage; ++stage_)
      for (int layer = bounds[stage_]; layer < bounds[stage_ + 1]; ++layer) {
        prefix_ = fmt::format("decoder.layers.{}.", layer);
        add_layer(letters[layer]);
      }
    stage_ = last_stage;
    prefix_.clear();
    add_norm("decoder.final_norm.weight");
    add({.name = "output_layer.weight", .shape = {config_.vocab, config_.hidden}, .tp_dim = 0, .init = normal_});
    return std::move(specs_);
  }

 private:
  void add(ParamSpec spec) {
    spec.name = prefix_ + spec.name;
    spec.stage = stage_;
    specs_.push_back(std::move(spec));
  }
  // A weight of a linear map, whose products may be in fp8.
  void add_map(ParamSpec spec) {
    spec.fp8 = config_.fp8 == Fp8Mode::Rowwise;
    add(std::move(spec));
  }
  void add_norm(const char* name) { add({.name = name, .shape = {config_.hidden}, .init = {InitRule::Ones}}); }

  void add_layer(char letter) {
    if (letter == 'M') add_mamba();
    if (letter == '*') add_attention();
    if (letter == 'E') add_moe();
    if (letter == '-') {
      add_norm("mlp.linear_fc1.layer_norm_weight");
      add_mlp("mlp.", config_.ffn);
    }
  }

  void add_mamba() {
    const std::int64_t inner = std::int64_t{config_.mamba_heads} * config_.mamba_head_dim, heads = config_.mamba_heads;
    const std::int64_t group_states = std::int64_t{config_.mamba_groups} * config_.mamba_state;
    const std::int64_t conv = inner + 2 * group_states, kernel = config_.mamba_conv;
    const std::vector<std::int64_t> conv_blocks = {inner, group_states, group_states};
    const std::vector<std::string> conv_names = {"x", "B", "C"};
    const InitRule conv_init = {InitRule::Uniform, 1 / std::sqrt(static_cast<double>(kernel))};
    add_norm("mixer.in_proj.layer_norm_weight");
    add_map({.name = "mixer.in_proj.weight",
             .shape = {inner + conv + heads, config_.hidden},
             .tp_dim = 0,
             .tp_blocks = {inner, inner, group_states, group_states, heads},
             .block_names = {"z", "x", "B", "C", "dt"},
             .init = normal_});
    add({.name = "mixer.conv1d.weight",
         .shape = {conv, 1, kernel},
         .tp_dim = 0,
         .tp_blocks = conv_blocks,
         .block_names = conv_names,
         .init = conv_init});
    if (config_.mamba_conv_bias)
      add({.name = "mixer.conv1d.bias",
           .shape = {conv},
           .tp_dim = 0,
           .tp_blocks = conv_blocks,
           .block_names = conv_names,
           .init = conv_init});
    add({.name = "mixer.A_log", .shape = {heads}, .tp_dim = 0, .init = {InitRule::ALog}});
    add({.name = "mixer.D", .shape = {heads}, .tp_dim = 0, .init = {InitRule::Ones}});
    add({.name = "mixer.dt_bias", .shape = {heads}, .tp_dim = 0, .init = {InitRule::DtBias}});
    add({.name = "mixer.norm.weight", .shape = {inner}, .tp_dim = 0, .init = {InitRule::Ones}});
    add_map({.name = "mixer.out_proj.weight", .shape = {config_.hidden, inner}, .tp_dim = 1, .init = residual_});
  }

  void add_attention() {
    const std::int64_t query = std::int64_t{config_.heads} * config_.head_dim;
    const std::int64_t key_value = 2 * std::int64_t{config_.kv_heads} * config_.head_dim;
    add_norm("self_attention.linear_qkv.layer_norm_weight");
    add_map({.name = "self_attention.linear_qkv.weight",
             .shape = {query + key_value, config_.hidden},
             .tp_dim = 0,
             .init = normal_});
    add_map({.name = "self_attention.linear_proj.weight",
             .shape = {config_.hidden, query},
             .tp_dim = 1,
             .init = residual_});
  }

  void add_moe() {
    const std::int64_t experts = config_.experts, ffn = config_.expert_ffn, hidden = config_.hidden;
    add_norm("pre_mlp_layernorm.weight");
    add({.name = "mlp.router.weight", .shape = {experts, hidden}, .init = normal_});
    add({.name = "mlp.router.expert_bias", .shape = {experts}, .trainable = false});
    add_map({.name = "mlp.experts.experts.linear_fc1.weight",
             .shape = {experts, ffn, hidden},
             .tp_dim = 1,
             .expert = true,
             .init = normal_});
    add_map({.name = "mlp.experts.experts.linear_fc2.weight",
             .shape = {experts, hidden, ffn},
             .tp_dim = 2,
             .expert = true,
             .init = residual_});
    if (config_.shared_ffn > 0) add_mlp("mlp.shared_experts.", config_.shared_ffn);
  }

  void add_mlp(const std::string& where, std::int64_t ffn) {
    add_map({.name = where + "linear_fc1.weight", .shape = {ffn, config_.hidden}, .tp_dim = 0, .init = normal_});
    add_map({.name = where + "linear_fc2.weight", .shape = {config_.hidden, ffn}, .tp_dim = 1, .init = residual_});
  }

  const HybridLmConfig& config_;
  const InitRule normal_, residual_;
  std::string prefix_;
  int stage_ = 0;
  std::vector<ParamSpec> specs_;
};

// A pattern with a caret below the letter at `place`; a long pattern is shortened around it.
std::string pointed_at(const std::string& pattern, std::size_t place) {
  constexpr std::size_t kShown = 100;
  const std::size_t begin = pattern.size() > kShown && place > kShown / 2 ? place - kShown / 2 : 0;
  std::string shown = (begin > 0 ? "..." : "") + pattern.substr(begin, kShown);
  for (char& c : shown) c = visible(c);
  if (begin + kShown < pattern.size()) shown += "...";
  return fmt::format("    {}\n    {:>{}}", shown, '^', (begin > 0 ? 3 : 0) + place - begin + 1);
}

void check_pattern(const HybridLmConfig& config, const LayoutSizes& layout, Checks& checks) {
  const std::string& pattern = config.pattern;
  if (const auto problem = pattern_problem(pattern, /*may_have_stages=*/true)) {
    checks.add("pattern", problem->what, problem->fix);
    return;
  }
  const int layers = static_cast<int>(layer_letters(config).size());
  if (layers == 0) return checks.add("pattern", "the layer pattern has no layers", "add at least one of M, *, E, -");
  const int stages = static_cast<int>(std::count(pattern.begin(), pattern.end(), '|')) + 1;
  if (stages > 1 && stages != layout.stages())
    checks.add("pattern",
               fmt::format("the layer pattern has {} pipeline stages, but the layout has pp={}{}", stages, layout.pp,
                           layout.vpp > 1 ? fmt::format(" x vpp={}", layout.vpp) : ""),
               fmt::format("use pp={}, or move the '|' in {}", stages, in_quotes(pattern)));
  if (stages == 1) checks.stages("pattern", layers, layout);
}

void check_sizes(const HybridLmConfig& c, Checks& checks) {
  if (!(c.norm_eps >= 0))
    checks.add("norm_eps", fmt::format("norm_eps={} must be 0 or more", c.norm_eps), "use e.g. 1e-5");
  checks.size("vocab", c.vocab, kMostVocab);
  checks.size("hidden", c.hidden);
  for (const auto& [letter, key, value, help] : kLayerSizes)
    if (has_layer(c, letter) && !(value == &HybridLmConfig::shared_ffn && c.shared_ffn == 0))
      checks.size(key, c.*value);
  if (std::count(c.pattern.begin(), c.pattern.end(), 'E') * std::int64_t{c.experts} > kMostExperts)
    checks.add("experts", fmt::format("{} experts in each layer are too many", c.experts),
               fmt::format("use {} or less in all layers together", kMostExperts));
  if (has_layer(c, 'E') && c.top_k > c.experts)
    checks.add("top_k", fmt::format("top_k={} experts per token, but there are only {}", c.top_k, c.experts),
               fmt::format("use top_k={} or less", c.experts));
}

void check_splits(const HybridLmConfig& c, const LayoutSizes& layout, Checks& checks) {
  const std::string tp = fmt::format("tp={}", layout.tp);
  checks.divides("vocab", c.vocab, layout.tp, tp);
  if (has_layer(c, '*')) checks.grouped_heads({"heads", c.heads}, {"kv_heads", c.kv_heads}, layout);
  if (has_layer(c, 'M')) checks.grouped_heads({"mamba_heads", c.mamba_heads}, {"mamba_groups", c.mamba_groups}, layout);
  if (has_layer(c, '-')) checks.divides("ffn", c.ffn, layout.tp, tp);
  if (has_layer(c, 'E')) {
    checks.divides("experts", c.experts, layout.ep, fmt::format("ep={}", layout.ep));
    checks.divides("expert_ffn", c.expert_ffn, layout.expt_tp, fmt::format("expt_tp={}", layout.expt_tp));
    checks.divides("shared_ffn", c.shared_ffn, layout.tp, tp);
  }
}

// The widths of fp8 products on each rank.
void check_fp8_widths(const HybridLmConfig& c, const LayoutSizes& layout, Checks& checks) {
  constexpr int kMultiple = 16;
  const auto check = [&](const char* field, const std::string& what, std::int64_t width) {
    if (width % kMultiple != 0)
      checks.add(field,
                 fmt::format("{} is {}, but widths of fp8 products must be multiples of {}", what, width, kMultiple),
                 "use other sizes or a smaller tp, or model.fp8: off");
  };
  const int tp = layout.tp, head_dim = c.head_dim;
  check("hidden", "hidden", c.hidden);
  if (has_layer(c, '*')) {
    check("heads", "the width of a rank's query heads", std::int64_t{c.heads} / tp * head_dim);
    check("kv_heads", "the width of a rank's projection to queries, keys and values",
          (std::int64_t{c.heads} + 2 * c.kv_heads) / tp * head_dim);
  }
  if (has_layer(c, 'M')) {
    const std::int64_t inner = std::int64_t{c.mamba_heads} * c.mamba_head_dim;
    const std::int64_t states = std::int64_t{c.mamba_groups} * c.mamba_state;
    check("mamba_heads", "the width of a rank's Mamba2 heads", inner / tp);
    check("mamba_heads", "the width of a rank's Mamba2 projection", (2 * (inner + states) + c.mamba_heads) / tp);
  }
  if (has_layer(c, '-')) check("ffn", "a rank's share of ffn", c.ffn / tp);
  if (has_layer(c, 'E')) {
    check("expert_ffn", "a rank's share of expert_ffn", c.expert_ffn / layout.expt_tp);
    check("shared_ffn", "a rank's share of shared_ffn", c.shared_ffn / tp);
  }
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
    if (kLetters.find(pattern[i]) == kLetters.npos && !(may_have_stages && pattern[i] == '|'))
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

std::vector<ParamSpec> declare_parameters(const HybridLmConfig& config, int pp) {
  return Declaration(config).run(stage_bounds(config, pp));
}

std::vector<Problem> validate(const HybridLmConfig& config, const LayoutSizes& layout, const std::string& where) {
  Checks checks(where);
  check_pattern(config, layout, checks);
  check_sizes(config, checks);
  check_splits(config, layout, checks);
  if (!checks.failed() && config.fp8 == Fp8Mode::Rowwise) check_fp8_widths(config, layout, checks);
  return checks.take();
}

}  // namespace braid
