// A stage of a language model on tensors without values: a function for each kind of layer, which mirrors its code.
#include <algorithm>
#include <cmath>
#include <utility>

#include "models/paper_layers.h"
#include "plan/pipeline.h"

namespace braid {
namespace {

constexpr std::int64_t kIndex = 8;  // bytes of an int64

PaperSequences sequences_of(const TextSizes& text) {
  const auto tokens = static_cast<double>(text.tokens);
  const std::int64_t count =
      text.squares > 0 ? std::max<std::int64_t>(1, std::llround(tokens * tokens / text.squares)) : 1;
  return {text.tokens, count, (text.tokens + count - 1) / count};
}

class LanguagePaper {
 public:
  LanguagePaper(const Module& module, const LayerOptions& options, const TextSizes& text, bool trains)
      : ops_({options.element_bytes, options.on_gpu, options.deterministic}),
        maps_(ops_, group_size(module, "tp"), group_size(module, "cp"), options.sequence_parallel,
              options.overlap.tp_pieces),
        tp_(group_size(module, "tp")),
        ep_(group_size(module, "ep")),
        expt_tp_(group_size(module, "expt_tp")),
        recompute_(in_language(options.recompute)),
        text_(text),
        sequences_(sequences_of(text)),
        trains_(trains),
        tokens_(text.tokens / maps_.cp()) {}

  template <class Config>
  StageMemory stage(const Config& c, int stage, int stages) {
    const std::vector<int> bounds = stage_bounds(c, stages);
    const auto begin = static_cast<std::size_t>(stage);
    const bool is_first = stage == 0, is_last = stage == stages - 1;
    // Attention and Mamba2 keep them, and so does a layer that runs again.
    const PaperMemory tables = ops_.tape().make(
        recompute_.full || reads_sequences(c, bounds[begin], bounds[begin + 1]) ? table_bytes(sequences_) : 0);
    // What the stage before sends is kept by the executor, too; embedded text is not.
    const std::int64_t own_rows = maps_.sequence_parallel() ? tokens_ / tp_ : tokens_;
    PaperTensor received = is_first ? PaperTensor() : ops_.matrix(own_rows, c.hidden);
    if (!is_first) received.gradient = std::make_shared<PaperMemory>();
    std::int64_t logits = 0;
    StageMemory memory = measured(ops_, [&] {
      PaperResidual stream(ops_, is_first ? embedded(c.hidden) : received);
      for (int layer = bounds[begin]; layer < bounds[begin + 1]; ++layer)
        add_layer(
            ops_, stream, [this, &c, layer, counts = kept_counts(c, layer)](PaperResidual& to) { add(c, layer, to); },
            recompute_.full, trains_);
      return is_last ? loss(stream.value(), c.hidden, c.vocab, logits) : stream.value();
    });
    memory.input = received.bytes();
    if (is_last) memory.output = 0;
    memory.logits = logits;
    return memory;
  }

 private:
  static bool reads_sequences(const HybridLmConfig& c, int begin, int end) {
    const std::string letters = layer_letters(c);
    return std::any_of(letters.begin() + begin, letters.begin() + end, [](char l) { return l == 'M' || l == '*'; });
  }
  static bool reads_sequences(const LlamaConfig&, int, int) { return true; }

  // Row counts of experts, which the second run of a layer does not exchange again (nn/expert_exchange.h).
  PaperMemory kept_counts(const HybridLmConfig& c, int layer) {
    const bool is_moe = layer_letters(c)[static_cast<std::size_t>(layer)] == 'E';
    return recompute_.full && is_moe ? row_counts(c) : nullptr;
  }
  PaperMemory kept_counts(const LlamaConfig&, int) { return nullptr; }
  PaperMemory row_counts(const HybridLmConfig& c) {
    const std::int64_t incoming = c.experts * expt_tp_;
    return ep_ * expt_tp_ == 1 ? nullptr : ops_.tape().make((c.experts + 2 * incoming) * kIndex);
  }

  // mimo/step.cpp: merge()
  PaperTensor embedded(std::int64_t hidden) {
    PaperTensor words = maps_.reduce_to_sequence(ops_.embedding(tokens_, hidden, trains_));
    if (text_.embeddings == 0) return words;
    PaperTensor media = {text_.embeddings, hidden, ops_.element()};
    if (tp_ * maps_.cp() > 1) media.memory = ops_.tape().make(media.bytes());  // the leader's, broadcast
    media.gradient = std::make_shared<PaperMemory>();
    return ops_.put_rows(words, media);
  }

  // logits() and token_losses()
  PaperTensor loss(const PaperTensor& x, std::int64_t hidden, std::int64_t vocab, std::int64_t& logits_bytes) {
    PaperTensor chosen;
    {
      const PaperTensor normed = ops_.norm(x, trains_, false);
      chosen = ops_.copy(maps_.gathered(normed).value, text_.labels, hidden);  // select_rows()
    }
    const PaperTensor logits = ops_.linear(chosen, {.in = hidden, .out = vocab / tp_, .trains = trains_});
    logits_bytes = logits.bytes();
    labels_ = ops_.tape().make(2 * text_.labels * kIndex);
    return ops_.cross_entropy(logits, tp_);
  }

  void add(const HybridLmConfig& c, int layer, PaperResidual& stream) {
    switch (layer_letters(c)[static_cast<std::size_t>(layer)]) {
      case 'M':
        return stream.add(mamba(c, stream));
      case '*':
        return stream.add(attention(c, stream, is_fp8(c)));
      case 'E':
        return stream.add(moe(c, stream));
      default:
        return stream.add(mlp(stream, c.hidden, c.ffn, c.ffn, is_fp8(c)));
    }
  }
  void add(const LlamaConfig& c, int, PaperResidual& stream) {
    stream.add(attention(c, stream, false));
    stream.add(mlp(stream, c.hidden, 2 * c.ffn, c.ffn, false));
  }

  static bool is_fp8(const HybridLmConfig& c) { return c.fp8 == Fp8Mode::Rowwise; }
  PaperWeight weight(std::int64_t in, std::int64_t out, bool fp8) const {
    return {.in = in, .out = out, .trains = trains_, .fp8 = fp8};
  }
  PaperRecomputable normed(PaperResidual& stream) const { return stream.normed(trains_, false, recompute_.norms); }

  // `inner`: the width of fc1's output
  PaperTensor mlp(PaperResidual& stream, std::int64_t hidden, std::int64_t inner, std::int64_t ffn, bool fp8) {
    return shared_mlp(normed(stream), hidden, inner, ffn, fp8);
  }
  PaperTensor shared_mlp(const PaperRecomputable& x, std::int64_t hidden, std::int64_t inner_width, std::int64_t ffn,
                         bool fp8) {
    const PaperTensor inner = maps_.columns(x, weight(hidden, inner_width, fp8));
    return maps_.rows(activated(inner, ffn / tp_), weight(ffn, hidden, fp8));
  }
  PaperRecomputable activated(const PaperTensor& inner, std::int64_t columns) {
    const PaperTensor value = ops_.activation(inner, columns);
    if (!recompute_.activations) return value;
    return {value, [this, kept = inner.memory, bytes = value.bytes()] { return ops_.tape().make(bytes); }};
  }

  // nn/self_attention.cpp
  template <class Config>
  PaperTensor attention(const Config& c, PaperResidual& stream, bool fp8) {
    const std::int64_t kv_heads = c.kv_heads / tp_, queries = c.heads / c.kv_heads, width = c.head_dim;
    const std::int64_t cp = maps_.cp(), own_heads = kv_heads * queries / cp,
                       own_groups = kv_heads % cp == 0 ? kv_heads / cp : 1;
    const auto attended = [&] {
      PaperTensor groups;
      {
        const PaperTensor qkv =
            maps_.columns(normed(stream), weight(c.hidden, std::int64_t{c.kv_heads} * (queries + 2) * width, fp8));
        groups = maps_.sequence_to_heads(qkv, (own_heads + 2 * own_groups) * width);
      }
      if constexpr (requires { c.rope_theta; }) groups = ops_.copy(groups, groups.rows, groups.columns);
      return maps_.heads_to_sequence(ops_.attention(groups, {own_groups, own_heads / own_groups, width}, sequences_));
    }();
    return maps_.rows(attended, weight(std::int64_t{c.heads} * width, c.hidden, fp8));
  }

  // nn/mamba2.cpp
  PaperTensor mamba(const HybridLmConfig& c, PaperResidual& stream) {
    PaperOps::Mixer mixer = {.heads = c.mamba_heads / tp_,
                             .width = c.mamba_head_dim,
                             .groups = c.mamba_groups / tp_,
                             .state = c.mamba_state,
                             .chunk = c.mamba_chunk,
                             .taps = c.mamba_conv,
                             .trains = trains_};
    const bool fp8 = is_fp8(c);
    const PaperTensor projected = maps_.columns(normed(stream), weight(c.hidden, mixer.features() * tp_, fp8));
    const PaperRecomputable mixed =
        maps_.cp() > 1 ? mix_shares(projected, mixer)
                       : ops_.mamba_mixer(projected, mixer, sequences_, recompute_.norms, recompute_.mamba);
    return maps_.rows(mixed, weight(mixer.inner() * tp_, c.hidden, fp8));
  }

  PaperRecomputable mix_shares(const PaperTensor& projected, const PaperOps::Mixer& mixer) {
    const std::int64_t cp = maps_.cp();
    PaperOps::Mixer own = mixer;
    own.heads = mixer.heads / cp;
    own.groups = mixer.groups % cp == 0 ? mixer.groups / cp : 1;
    const auto scan = [this, own](const PaperOps::Tensors& in) -> PaperOps::Tensors {
      const PaperTensor features = maps_.sequence_to_heads(in[0], own.convolved() + own.heads);
      PaperTensor xbc = features, steps = features;
      xbc.columns = own.convolved();
      steps.columns = own.heads;
      return {ops_.scan(ops_.convolution(xbc, own), steps, own, sequences_)};
    };
    PaperTensor xbc_dt = projected, z = projected;  // views
    xbc_dt.columns = mixer.convolved() + mixer.heads;
    z.columns = mixer.inner();
    const PaperTensor share = recompute_.mamba ? ops_.recompute(scan, {xbc_dt}, trains_)[0] : scan({xbc_dt})[0];
    const PaperTensor y = maps_.heads_to_sequence(share);
    const PaperTensor out = ops_.gated_norm(y, z, mixer.groups, trains_);
    if (!recompute_.norms) return out;
    return {out, [this, kept = std::pair(y.memory, z.memory), bytes = out.bytes()] { return ops_.tape().make(bytes); }};
  }

  // nn/moe.cpp
  PaperTensor moe(const HybridLmConfig& c, PaperResidual& stream) {
    const PaperRecomputable normed = this->normed(stream);
    PaperRecomputable own = normed;
    own.value.rows = maps_.own_rows(normed.value.rows);
    const bool own_is_all = own.value.rows == normed.value.rows, has_shared = c.shared_ffn > 0,
               is_shared = has_shared && own_is_all;
    const auto [routing, tokens] = [&] {
      const PaperOps::Routed routed = ops_.router(own, c.experts, trains_, is_shared ? 2 : 1);
      return std::pair(ops_.route(routed.logits, c.top_k), routed.tokens);
    }();
    const PaperRecomputable to_experts(tokens[0], own.again);
    const bool is_local = ep_ == 1 && expt_tp_ == 1, fused = is_fp8(c) && is_local && own.value.rows > 0;
    const PaperMemory order = ops_.expert_order(own.value.rows * c.top_k, c.experts);
    const PaperMemory counts = recompute_.experts ? row_counts(c) : nullptr;
    const PaperMemory places = is_local ? nullptr : row_places(c, own.value.rows * c.top_k * expt_tp_);
    std::optional<Dispatched> rows;
    if (!fused && !recompute_.experts) rows = dispatched(to_experts.value, routing.weights, order, c.top_k);
    PaperTensor shared;
    if (has_shared)
      shared = shared_mlp(is_shared ? PaperRecomputable(tokens[1], normed.again) : normed, c.hidden, c.shared_ffn,
                          c.shared_ffn, is_fp8(c));
    const PaperTensor added = own_is_all ? shared : PaperTensor();
    PaperTensor y;
    if (fused) {
      const PaperOps::ExpertMlp mlp = {expert_weight(c, true), expert_weight(c, false), c.top_k};
      y = ops_.expert_mlp_fp8(to_experts, routing.weights, added, mlp, order, recompute_.experts);
    } else {
      PaperTensor outputs;
      if (rows) {
        outputs = run_experts(c, *std::exchange(rows, std::nullopt), places);
      } else {
        const auto from_tokens = [this, &c, order, counts, places](const PaperOps::Tensors& in) -> PaperOps::Tensors {
          return {run_experts(c, dispatched(in[0], in[1], order, c.top_k), places)};
        };
        outputs = ops_.recompute(from_tokens, {to_experts, routing.weights}, trains_)[0];
      }
      y = ops_.unpermute(outputs, order, c.top_k, added);
    }
    if (c.aux_loss_coeff != 0) y = ops_.with_aux_loss(y, routing.scores, text_.samples);
    const PaperTensor routed = maps_.all_rows(y);
    return has_shared && !own_is_all ? ops_.sum(routed, shared) : routed;
  }

  PaperWeight expert_weight(const HybridLmConfig& c, bool is_first) const {
    const std::int64_t ffn = c.expert_ffn / expt_tp_;
    return {.in = is_first ? c.hidden : ffn,
            .out = is_first ? ffn : c.hidden,
            .trains = trains_,
            .fp8 = is_fp8(c),
            .matrices = c.experts / ep_};
  }

  // Rows that go to experts, and their weights.
  struct Dispatched {
    PaperTensor rows, weights;
  };
  Dispatched dispatched(const PaperTensor& tokens, const PaperTensor& weights, const PaperMemory& order,
                        std::int64_t top_k) {
    const PaperTensor rows = ops_.permute(tokens, order, top_k);
    if (ep_ * expt_tp_ == 1) return {rows, weights};
    return {rows, ops_.copy(weights, rows.rows, 1)};
  }

  // The order of received rows by expert and by source, and where the rows of each expert end.
  PaperMemory row_places(const HybridLmConfig& c, std::int64_t received) {
    constexpr std::int64_t kInt = 4;
    return ops_.tape().make(2 * received * kIndex + c.experts / ep_ * kInt);
  }

  // nn/expert_exchange.cpp: await(), the products, start_combine()
  PaperTensor run_experts(const HybridLmConfig& c, Dispatched sent, const PaperMemory& places) {
    const std::int64_t own = sent.rows.rows, received = own * expt_tp_;
    const bool is_local = ep_ * expt_tp_ == 1;
    const auto arrived = [&](PaperTensor x) {
      if (is_local) return x;
      if (ep_ > 1) x = ops_.exchange(x, own, x.columns);
      if (expt_tp_ > 1) x = ops_.exchange(ops_.copy(x, received, x.columns), received, x.columns);
      return ops_.copy(x, received, x.columns, places);  // by expert
    };
    PaperTensor outputs;
    {
      const PaperTensor weights = arrived(std::exchange(sent.weights, {}));
      const PaperTensor inner = ops_.linear(arrived(std::exchange(sent.rows, {})), expert_weight(c, true));
      const PaperTensor value = ops_.scaled_activation(inner, weights);
      const PaperRecomputable activated =
          recompute_.activations ? PaperRecomputable(value, [this, kept = std::pair(inner.memory, weights.memory),
                                                             bytes = value.bytes()] { return ops_.tape().make(bytes); })
                                 : PaperRecomputable(value);
      outputs = ops_.linear(activated, expert_weight(c, false));
    }
    if (is_local) return outputs;
    outputs = ops_.copy(outputs, received, c.hidden, places);  // by source
    if (expt_tp_ > 1) {
      outputs = ops_.exchange(outputs, received, c.hidden);
      outputs = ops_.copy(outputs, own, c.hidden);  // their sum
    }
    return ep_ > 1 ? ops_.exchange(outputs, own, c.hidden) : outputs;
  }

  PaperOps ops_;
  const PaperMaps maps_;
  const std::int64_t tp_, ep_, expt_tp_;
  const RecomputeConfig recompute_;
  const TextSizes text_;
  const PaperSequences sequences_;
  const bool trains_;
  const std::int64_t tokens_;  // of this rank's share of the sequence
  PaperMemory labels_;
};

}  // namespace

StageMemory memory_of(const LanguageConfig& config, const Module& module, int stage, const LayerOptions& options,
                      const TextSizes& text, bool trains) {
  LanguagePaper paper(module, options, text, trains);
  return std::visit([&](const auto& c) { return paper.stage(c, stage, stage_count(module)); }, config);
}

}  // namespace braid
