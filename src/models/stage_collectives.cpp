#include "models/stage_collectives.h"

#include <algorithm>

#include "models/encoders.h"
#include "models/even_stages.h"
#include "plan/pipeline.h"

namespace braid {
namespace {

// A collective of a forward. Its backward is its transpose, of as many bytes (comm/collectives.h).
struct Use {
  Collective call;
  bool again = false;  // backward repeats it, because its result was not kept
  bool once = false;   // a layer that runs again in backward does not repeat it: its result is kept, or unused
  bool has_transpose = true;
  // Into how many operations it is cut; and its repetition, if only that of one layer's input.
  std::int64_t pieces = 1, pieces_again = 1;
  bool beside_products = false;  // in backward: its transpose and its repetition run during products of other tensors
};
using Uses = std::vector<Use>;

Uses operator+(Uses a, const Uses& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Collective transpose_of(Collective call) {
  if (call.operation == "all_gather")
    call.operation = "reduce_scatter";
  else if (call.operation == "reduce_scatter")
    call.operation = "all_gather";
  return call;
}

enum class Backward { None, Plain, Recomputed };

LayerCollectives layer_of(const Uses& uses, Backward backward) {
  LayerCollectives layer;
  for (const Use& use : uses) {
    const auto in_pieces = [](Collective call, std::int64_t pieces, bool beside) {
      call.operations = pieces;
      call.beside = beside;
      return call;
    };
    layer.forward.push_back(in_pieces(use.call, use.pieces, false));
    if (backward == Backward::None) continue;
    if (backward == Backward::Recomputed && !use.once) layer.backward.push_back(in_pieces(use.call, use.pieces, false));
    if (backward == Backward::Plain && use.again)
      layer.backward.push_back(in_pieces(use.call, use.pieces_again, use.beside_products));
    if (use.has_transpose) layer.backward.push_back(in_pieces(transpose_of(use.call), use.pieces, use.beside_products));
  }
  return layer;
}

// Fp32, or wider where the elements are.
std::int64_t wide_bytes(const LayerOptions& options) { return std::max<std::int64_t>(options.element_bytes, 4); }

// The calls of nn/parallel.h, for `rows` rows inside tensor-parallel regions.
struct Rows {
  std::int64_t rows;
  std::int64_t element_bytes;
  bool sequence_parallel;
  std::int64_t pieces = 1;  // of linear maps, with sequence parallelism

  std::int64_t bytes(std::int64_t width) const { return rows * width * element_bytes; }

  Uses gather_sequence(std::int64_t width, bool again = false) const {
    if (!sequence_parallel) return {};
    return {{{"tp", "all_gather", bytes(width)}, again}};
  }
  Uses reduce_to_sequence(std::int64_t width, bool ends_layer = false) const {
    return {{.call = {"tp", sequence_parallel ? "reduce_scatter" : "all_reduce", bytes(width)}, .once = ends_layer}};
  }
  // The same for linear maps (nn/linear_pieces.cpp). An input that is not kept is gathered again as a whole, during the
  // product of the input's gradient; this gradient is summed during the product of the weight's, except in fp8.
  Uses column_map(std::int64_t width, bool again, bool beside_products) const {
    Uses uses = gather_sequence(width, again);
    for (Use& use : uses) {
      use.pieces = pieces;
      use.beside_products = beside_products;
    }
    return uses;
  }
  Uses row_map(std::int64_t width, bool ends_layer) const {
    Uses uses = reduce_to_sequence(width, ends_layer);
    for (Use& use : uses) use.pieces = pieces;
    return uses;
  }
  Uses gather_features(std::int64_t width) const { return {{{"tp", "all_gather", bytes(width)}}}; }
  Uses all_rows(std::int64_t width) const {
    if (sequence_parallel) return {};
    return {{.call = {"tp", "all_gather", bytes(width)}, .once = true}};  // at the end of a layer
  }
  // sequence_to_heads() and heads_to_sequence()
  Uses swap_rows_and_heads(std::int64_t width, bool again = false) const {
    return {{{"cp", "all_to_all", bytes(width)}, again}};
  }
};

// Copies of each of `parts` parts, if `ranks` ranks share them.
std::int64_t copies_for(std::int64_t ranks, std::int64_t parts) { return parts % ranks == 0 ? 1 : ranks / parts; }

class LanguageUses {
 public:
  LanguageUses(const Module& module, const LayerOptions& options, const TextSizes& text, bool trains)
      : tp_(group_size(module, "tp")),
        cp_(group_size(module, "cp")),
        expt_tp_(group_size(module, "expt_tp")),
        options_(options),
        recompute_(in_language(options.recompute)),
        text_(text),
        trains_(trains),
        rows_{text.tokens / cp_, options.element_bytes, options.sequence_parallel && tp_ > 1,
              options.sequence_parallel ? std::min(std::int64_t{options.overlap.tp_pieces}, text.tokens / cp_ / tp_)
                                        : 1} {}

  // nn/linear.h: embed()
  Uses embedding(std::int64_t hidden) const { return rows_.reduce_to_sequence(hidden); }

  // logits() and vocab_parallel_cross_entropy(): the largest logit, then the two sums
  Uses loss(std::int64_t hidden) const {
    const std::int64_t bytes = text_.labels * wide_bytes(options_);
    return rows_.gather_sequence(hidden) + Uses{{.call = {"tp", "all_reduce", bytes}, .has_transpose = false},
                                                {.call = {"tp", "all_reduce", 2 * bytes}, .has_transpose = false}};
  }

  // nn/self_attention.cpp
  template <class Config>
  Uses attention(const Config& c, bool fp8, bool ends_layer) const {
    const std::int64_t kv_heads = c.kv_heads / tp_, queries = c.heads / c.kv_heads, width = c.head_dim;
    return normed_columns(c.hidden, fp8) +
           rows_.swap_rows_and_heads(kv_heads * (queries + 2 * copies_for(cp_, kv_heads)) * width) +
           rows_.swap_rows_and_heads(kv_heads * queries * width) + rows_.row_map(c.hidden, ends_layer);
  }

  // A dense MLP of any kind, at the end of its layer
  Uses mlp(std::int64_t hidden, bool fp8) const { return normed_columns(hidden, fp8) + rows_.row_map(hidden, true); }

  // nn/mamba2.cpp
  Uses mamba(const HybridLmConfig& c) const {
    const std::int64_t heads = c.mamba_heads / tp_, groups = c.mamba_groups / tp_, width = c.mamba_head_dim;
    const std::int64_t scanned = copies_for(cp_, heads) * heads * (width + 1) +         // x, dt
                                 copies_for(cp_, groups) * 2 * groups * c.mamba_state;  // B, C
    return normed_columns(c.hidden, is_fp8(c)) + rows_.swap_rows_and_heads(scanned, recompute_.mamba) +
           rows_.swap_rows_and_heads(heads * width) + rows_.row_map(c.hidden, true);
  }

  // nn/moe.cpp and nn/expert_exchange.cpp
  Uses moe(const HybridLmConfig& c) const {
    const std::int64_t routed = rows_.rows / tp_ * c.top_k, counts = c.experts * std::int64_t{sizeof(std::int64_t)};
    const std::int64_t to_experts = routed * (c.hidden * options_.element_bytes + wide_bytes(options_)),
                       from_experts = routed * c.hidden * options_.element_bytes;
    const bool again = recompute_.experts;
    const std::int64_t pieces = options_.overlap.expert_pieces;
    const auto cut = [pieces](Use use) {
      use.pieces = use.pieces_again = pieces;
      return use;
    };
    Uses uses = {
        {.call = {"ep", "all_to_all", pieces * counts}, .once = true, .has_transpose = false},
        {.call = {"expt_tp", "all_gather", expt_tp_ * pieces * counts}, .once = true, .has_transpose = false},
        cut({.call = {"ep", "all_to_all", to_experts}, .again = again}),  // dispatch: rows and their weights
        cut({.call = {"expt_tp", "all_to_all", expt_tp_ * to_experts}, .again = again}),
        cut({.call = {"expt_tp", "all_to_all", expt_tp_ * from_experts}, .once = true}),  // combine
        cut({.call = {"ep", "all_to_all", from_experts}, .once = true}),
    };
    if (c.shared_ffn > 0) uses = uses + mlp(c.hidden, is_fp8(c));
    if (c.aux_loss_coeff != 0)
      uses.push_back({.call = {"cp-tp", "all_reduce", text_.samples * c.experts * wide_bytes(options_)},
                      .once = true,  // in the run with gradients
                      .has_transpose = false});
    return uses + rows_.all_rows(c.hidden);
  }

  Uses layer(const HybridLmConfig& c, int layer) const {
    switch (layer_letters(c)[static_cast<std::size_t>(layer)]) {
      case 'M':
        return mamba(c);
      case '*':
        return attention(c, is_fp8(c), true);
      case 'E':
        return moe(c);
      default:
        return mlp(c.hidden, is_fp8(c));
    }
  }
  Uses layer(const LlamaConfig& c, int) const { return attention(c, false, false) + mlp(c.hidden, false); }

  Backward backward_of_layers() const { return recompute_.full ? Backward::Recomputed : Backward::Plain; }

 private:
  static bool is_fp8(const HybridLmConfig& c) { return c.fp8 == Fp8Mode::Rowwise; }

  // A linear map of a norm's output: its weight gradient needs the gathered input again. In fp8 the input is kept.
  Uses normed_columns(std::int64_t hidden, bool fp8) const {
    return rows_.column_map(hidden, recompute_.norms && trains_ && !fp8, trains_ && !fp8);
  }

  const std::int64_t tp_, cp_, expt_tp_;
  const LayerOptions options_;
  const RecomputeConfig recompute_;
  const TextSizes text_;
  const bool trains_;
  const Rows rows_;
};

template <class Config>
std::vector<LayerCollectives> language_stage(const Config& c, const Module& module, int stage,
                                             const LayerOptions& options, const TextSizes& text, bool trains) {
  const LanguageUses uses(module, options, text, trains);
  const int stages = stage_count(module);
  const std::vector<int> bounds = stage_bounds(c, stages);
  const auto begin = static_cast<std::size_t>(stage);
  std::vector<LayerCollectives> all;
  if (stage == 0) all.push_back(layer_of(uses.embedding(c.hidden), trains ? Backward::Plain : Backward::None));
  for (int layer = bounds[begin]; layer < bounds[begin + 1]; ++layer)
    all.push_back(layer_of(uses.layer(c, layer), uses.backward_of_layers()));
  if (stage == stages - 1) all.push_back(layer_of(uses.loss(c.hidden), Backward::Plain));
  return all;
}

int layers_on(const EncoderModel& model, int stage, int stages) {
  const int layers = std::visit([](const auto& c) { return layers_of(c).layers; }, model);
  const std::vector<int> bounds = even_stages(layers, stages);
  const auto begin = static_cast<std::size_t>(stage);
  return bounds[begin + 1] - bounds[begin];
}

}  // namespace

std::vector<LayerCollectives> collectives_of(const LanguageConfig& config, const Module& module, int stage,
                                             const LayerOptions& options, const TextSizes& text, bool trains) {
  return std::visit([&](const auto& c) { return language_stage(c, module, stage, options, text, trains); }, config);
}

std::vector<LayerCollectives> collectives_of(const EncoderConfig& config, const Module& module, int stage,
                                             const LayerOptions& options,
                                             const std::vector<std::vector<std::int64_t>>& extents,
                                             const EncoderTraining& trains) {
  const ItemRows items = rows_of_items(config, extents);
  const auto rows = [&](std::int64_t count) { return Rows{count, options.element_bytes, false}; };
  const std::int64_t hidden = hidden_of(config.model), output = config.projector.output;
  const int stages = stage_count(module);
  const Backward plain = trains.encoder ? Backward::Plain : Backward::None;
  std::vector<LayerCollectives> all;
  if (stage == 0) all.push_back(layer_of(rows(items.embedded).gather_features(hidden), plain));
  // With a layer scale, the gradient of the scale needs the MLP's output.
  const bool is_scaled = std::visit([](const auto& c) { return layers_of(c).layer_scale; }, config.model);
  const Uses layer_uses =
      rows(items.hidden).reduce_to_sequence(hidden) + rows(items.hidden).reduce_to_sequence(hidden, !is_scaled);
  for (int layer = 0; layer < layers_on(config.model, stage, stages); ++layer)
    all.push_back(
        layer_of(layer_uses, trains.encoder && in_encoder(options.recompute).full ? Backward::Recomputed : plain));
  if (stage < stages - 1) return all;
  all.emplace_back();  // from the stream to the projector's input, without communication
  all.push_back(layer_of(config.projector.kind == "affine" ? rows(items.embeddings).gather_features(output)
                                                           : rows(items.embeddings).reduce_to_sequence(output),
                         trains.encoder || trains.projector ? Backward::Plain : Backward::None));
  return all;
}

// Moe::update_expert_biases()
Collectives update_collectives(const LanguageConfig& config, const Module& module, const std::vector<int>& stages,
                               const LayerOptions& options) {
  const auto* c = std::get_if<HybridLmConfig>(&config);
  if (!c) return {};
  const std::vector<int> bounds = stage_bounds(*c, stage_count(module));
  const std::string letters = layer_letters(*c);
  std::int64_t layers = 0;
  for (const int stage : stages) {
    const auto at = static_cast<std::size_t>(stage);
    layers += std::count(letters.begin() + bounds[at], letters.begin() + bounds[at + 1], 'E');
  }
  return {{"dp-cp-tp", "all_reduce", layers * c->experts * wide_bytes(options)}};
}

}  // namespace braid
