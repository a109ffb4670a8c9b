// A stage of a language model on paper: a function for each kind of layer, which mirrors its code.

#include "paper/layers.h"
#include "paper/stage.h"
#include "plan/pipeline.h"
#include "plan/topology.h"

namespace braid {
namespace {

PaperSequences sequences_of(const TextSizes& text) {
  const auto tokens = static_cast<double>(text.tokens);
  const std::int64_t count =
      text.squares > 0 ? std::max<std::int64_t>(1, std::llround(tokens * tokens / text.squares)) : 1;
  return {text.tokens, count, (text.tokens + count - 1) / count, text.squares};
}

bool is_fp8(const HybridLmConfig& c) { return c.fp8 == Fp8Mode::Rowwise; }

class LanguageWalk {
 public:
  LanguageWalk(const Module& module, const LayerOptions& options, const TextSizes& text, bool trains)
      : ops_(options), maps_(ops_, group_size(module, "tp"), group_size(module, "cp"), options.sequence_parallel,
                             options.overlap.tp_pieces),
        tp_(group_size(module, "tp")), ep_(group_size(module, "ep")), expt_tp_(group_size(module, "expt_tp")),
        recompute_(in_language(options.recompute)), overlap_(options.overlap), text_(text),
        sequences_(sequences_of(text)), trains_(trains), tokens_(text.tokens / maps_.cp()) {}

  template <class Config>
  StageOnPaper stage(const Config& c, int stage, int stages) {
    const std::vector<int> bounds = stage_bounds(c, stages);
    const bool is_first = stage == 0, is_last = stage == stages - 1;
    // Attention and Mamba2 keep them, and so does a layer that runs again.
    const PaperMemory tables = ops_.make(
        recompute_.full || reads_sequences(c, bounds[stage], bounds[stage + 1]) ? table_bytes(sequences_) : 0);
    // What the stage before sends is kept by the executor, too; embedded text is not.
    const std::int64_t own_rows = maps_.sequence_parallel() ? tokens_ / tp_ : tokens_;
    PaperTensor received = is_first ? PaperTensor() : ops_.matrix(own_rows, c.hidden);
    if (!is_first) received.gradient = std::make_shared<PaperMemory>();
    std::int64_t logits = 0;
    StageMemory memory = measured(ops_, [&] {
      PaperResidual stream(ops_, is_first ? embedded(c.hidden, c.vocab) : received, PaperResidual::Of::Stage, true);
      for (int layer = bounds[stage]; layer < bounds[stage + 1]; ++layer)
        add_layer(ops_, stream,
                  [this, &c, layer, counts = kept_counts(c, layer)](PaperResidual& to) { add(c, layer, to); },
                  {.recomputed = recompute_.full, .trains = trains_});
      return is_last ? loss(stream.value(), c.hidden, c.vocab, logits) : stream.value();
    });
    memory.input = received.bytes();
    if (is_last) memory.output = 0;
    memory.logits = logits;
    return {ops_.layers(), memory};
  }

 private:
  // Row counts of experts, which the second run of a layer does not exchange again (nn/moe.h).
  PaperMemory kept_counts(const HybridLmConfig& c, int layer) {
    return recompute_.full && layer_letters(c)[layer] == 'E' ? row_counts(c) : nullptr;
  }
  PaperMemory kept_counts(const LlamaConfig&, int) { return nullptr; }
  PaperMemory row_counts(const HybridLmConfig& c) {
    const std::int64_t incoming = c.experts * expt_tp_;
    return ep_ * expt_tp_ == 1 ? nullptr : ops_.make((c.experts + 2 * incoming) * PaperOps::kIndex);
  }

  // mimo/step.cpp: merge()
  PaperTensor embedded(std::int64_t hidden, std::int64_t vocab) {
    ops_.begin_layer();
    PaperTensor words = maps_.reduce_to_sequence(ops_.embedding(tokens_, hidden, vocab / tp_, trains_));
    // A model that does not train passes on the gradients of media, even if a microbatch has none.
    if (text_.embeddings == 0 && !trains_) words.gradient = std::make_shared<PaperMemory>();
    if (text_.embeddings == 0) return words;
    PaperTensor media = {text_.embeddings, hidden, ops_.element()};
    if (tp_ * maps_.cp() > 1) media.memory = ops_.make(media.bytes());  // the leader's, broadcast
    media.gradient = std::make_shared<PaperMemory>();
    return ops_.put_rows(words, media);
  }

  // logits() and token_losses()
  PaperTensor loss(const PaperTensor& x, std::int64_t hidden, std::int64_t vocab, std::int64_t& logits_bytes) {
    ops_.begin_layer();
    if (!recompute_.full) ops_.count(ops_.works(true).add(real(x.rows), real(hidden)), false);
    PaperTensor chosen;
    {
      const PaperTensor all = maps_.gathered(ops_.norm(x, {.trains = trains_})).value;
      const double labels = real(text_.labels), width = real(hidden);
      const Operators works = ops_.works(trains_);
      chosen = ops_.copy(all, text_.labels, hidden,  // select_rows()
                         {works.stream(Operator::Rows, 2 * labels * width),
                          works.stream(Operator::Rows, (labels + real(tokens_)) * width)});
    }
    const PaperTensor logits = ops_.linear(chosen, {.in = hidden, .out = vocab / tp_, .trains = trains_});
    logits_bytes = logits.bytes();
    labels_ = ops_.make(2 * text_.labels * PaperOps::kIndex);
    const std::int64_t numbers = text_.labels * ops_.wide();
    for (const std::int64_t bytes : {numbers, 2 * numbers})  // of the largest logit, then of the two sums
      ops_.communicate({.call = {"tp", "all_reduce", bytes}, .has_transpose = false}, false);
    return ops_.cross_entropy(logits, tp_);
  }

  // Attention and Mamba2 read the tables of sequences.
  static bool reads_sequences(const HybridLmConfig& c, int begin, int end) {
    return layer_letters(c).substr(begin, end - begin).find_first_of("M*") != std::string::npos;
  }
  static bool reads_sequences(const LlamaConfig&, int, int) { return true; }

  void add(const HybridLmConfig& c, int layer, PaperResidual& stream) {
    const bool fp8 = is_fp8(c);
    switch (const char letter = layer_letters(c)[layer]) {
      case 'M': return stream.add(mamba(c, stream));
      case '*': return stream.add(attention(c, stream, {.fp8 = fp8, .ends_layer = true}));
      case 'E': return stream.add(moe(c, stream));
      case '-': return stream.add(mlp(normed(stream), {.hidden = c.hidden, .inner = c.ffn, .ffn = c.ffn, .fp8 = fp8}));
      default: throw_check_failed(__FILE__, __LINE__, fmt::format("'{}' is not a layer", letter));
    }
  }
  void add(const LlamaConfig& c, int, PaperResidual& stream) {
    stream.add(attention(c, stream, {.fp8 = false}));
    stream.add(mlp(normed(stream), {.hidden = c.hidden, .inner = 2 * c.ffn, .ffn = c.ffn}));
  }

  PaperWeight weight(std::int64_t in, std::int64_t out, bool fp8, bool ends_layer = false) const {
    return {.in = in, .out = out, .trains = trains_, .fp8 = fp8, .ends_layer = ends_layer};
  }
  PaperRecomputable normed(PaperResidual& stream) const { return stream.normed(trains_, false, recompute_.norms); }

  struct Mlp {
    std::int64_t hidden = 0, inner = 0, ffn = 0;  // inner: the width of fc1's output
    bool fp8 = false;
  };
  // At the end of a layer. In fp8 the second map keeps its input in fp8 and does not read it again.
  PaperTensor mlp(const PaperRecomputable& x, const Mlp& m) {
    const PaperTensor inner = maps_.columns(x, weight(m.hidden, m.inner, m.fp8));
    const PaperTensor value = ops_.activation(inner, m.ffn / tp_, recompute_.activations && !m.fp8);
    return maps_.rows(ops_.recomputable(value, recompute_.activations, inner.memory),
                      weight(m.ffn, m.hidden, m.fp8, /*ends_layer=*/true));
  }

  // nn/self_attention.cpp
  struct AttentionMaps {
    bool fp8 = false, ends_layer = false;
  };
  template <class Config>
  PaperTensor attention(const Config& c, PaperResidual& stream, const AttentionMaps& maps) {
    const std::int64_t kv_heads = c.kv_heads / tp_, queries = c.heads / c.kv_heads, width = c.head_dim;
    const std::int64_t cp = maps_.cp(), own_heads = kv_heads * queries / cp,
                       own_groups = kv_heads % cp == 0 ? kv_heads / cp : 1;
    const auto attended = [&] {
      PaperTensor groups;
      {
        const PaperTensor qkv =
            maps_.columns(normed(stream), weight(c.hidden, std::int64_t{c.kv_heads} * (queries + 2) * width, maps.fp8));
        groups = maps_.sequence_to_heads(qkv, (own_heads + 2 * own_groups) * width);
      }
      if constexpr (requires { c.rope_theta; }) {  // rotary positions
        const double elements = real(tokens_) * real(c.heads + 2 * c.kv_heads) / real(tp_) * real(width);
        groups =
            ops_.copy(groups, groups.rows, groups.columns, ops_.works(true).copied(Operator::Stream, 2 * elements));
      }
      return maps_.heads_to_sequence(ops_.attention(groups, {own_groups, own_heads / own_groups, width}, sequences_));
    }();
    return maps_.rows(attended, weight(std::int64_t{c.heads} * width, c.hidden, maps.fp8, maps.ends_layer));
  }

  // nn/mamba2.cpp
  PaperTensor mamba(const HybridLmConfig& c, PaperResidual& stream) {
    PaperMixers::Mixer mixer = {.heads = c.mamba_heads / tp_,
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
    return maps_.rows(mixed, weight(mixer.inner() * tp_, c.hidden, fp8, /*ends_layer=*/true));
  }

  PaperRecomputable mix_shares(const PaperTensor& projected, const PaperMixers::Mixer& mixer) {
    const std::int64_t cp = maps_.cp();
    PaperMixers::Mixer own = mixer;
    own.heads = mixer.heads / cp;
    own.groups = mixer.groups % cp == 0 ? mixer.groups / cp : 1;
    const PaperMixers::MixerWork work = ops_.mixer_work(mixer, cp, sequences_);
    const auto scan = [this, own, work](const PaperOps::Tensors& in) -> PaperOps::Tensors {
      const PaperTensor features = maps_.sequence_to_heads(in[0], own.convolved() + own.heads);
      PaperTensor xbc = features, steps = features;
      xbc.columns = own.convolved();
      steps.columns = own.heads;
      return {ops_.scan(work.scan, ops_.convolution(work.convolution, xbc, own), steps, own, sequences_)};
    };
    PaperTensor xbc_dt = projected, z = projected;  // views
    xbc_dt.columns = mixer.convolved() + mixer.heads;
    z.columns = mixer.inner();
    const PaperTensor share = recompute_.mamba ? ops_.recompute(scan, {xbc_dt}, trains_)[0] : scan({xbc_dt})[0];
    const PaperTensor y = maps_.heads_to_sequence(share);
    const PaperTensor out = ops_.gated_norm(repeated_if(recompute_.norms, work.gated_norm), y, z, mixer);
    return ops_.recomputable(out, recompute_.norms, y.memory, z.memory);
  }

  // nn/moe.cpp
  PaperTensor moe(const HybridLmConfig& c, PaperResidual& stream) {
    const PaperRecomputable normed = this->normed(stream);
    PaperRecomputable own = normed;
    own.value.rows = maps_.own_rows(normed.value.rows);
    const bool own_is_all = own.value.rows == normed.value.rows, has_shared = c.shared_ffn > 0,
               is_shared = has_shared && own_is_all;
    const auto [routing, tokens] = [&] {
      const PaperMixers::Routed routed = ops_.router(own, c.experts, trains_, is_shared ? 2 : 1);
      return std::pair(ops_.route(routed.logits, c.top_k), routed.tokens);
    }();
    const PaperRecomputable to_experts(tokens[0], own.again);
    const bool is_local = ep_ == 1 && expt_tp_ == 1, fused = is_fp8(c) && is_local && own.value.rows > 0;
    exchange_rows(c, own.value.rows * c.top_k, trains_ || own.value.trains());
    const PaperMemory order = ops_.expert_order(own.value.rows * c.top_k, c.experts);
    const PaperMemory counts = recompute_.experts ? row_counts(c) : nullptr;
    const PaperMemory places = is_local ? nullptr : row_places(c, own.value.rows * c.top_k * expt_tp_);
    std::optional<Dispatched> rows;
    if (!fused && !recompute_.experts) rows = dispatched(to_experts.value, routing.weights, order, c.top_k);
    PaperTensor shared;
    if (has_shared) {
      const auto beside = ops_.beside_experts();
      shared = mlp(is_shared ? PaperRecomputable(tokens[1], normed.again) : normed,
                   {.hidden = c.hidden, .inner = c.shared_ffn, .ffn = c.shared_ffn, .fp8 = is_fp8(c)});
    }
    const PaperTensor added = own_is_all ? shared : PaperTensor();
    PaperTensor y;
    if (fused) {
      const PaperMixers::ExpertMlp mlp = {expert_weight(c, true), expert_weight(c, false), c.top_k};
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
    if (c.aux_loss_coeff != 0) {
      y = ops_.with_aux_loss(y, routing.scores, text_.samples);
      const Collective sums = {"cp-tp", "all_reduce", text_.samples * c.experts * ops_.wide()};
      ops_.communicate({.call = sums, .once = true, .has_transpose = false}, false);
    }
    const PaperTensor routed = maps_.all_rows(y);
    return has_shared && !own_is_all ? ops_.sum(routed, shared) : routed;
  }

  PaperWeight expert_weight(const HybridLmConfig& c, bool is_first) const {
    const std::int64_t ffn = c.expert_ffn / expt_tp_;
    return {.in = is_first ? c.hidden : ffn,
            .out = is_first ? ffn : c.hidden,
            .trains = trains_,
            .fp8 = is_fp8(c),
            .matrices = c.experts / ep_,
            .is_of_experts = true,
            .ends_layer = !is_first};
  }

  // nn/moe.cpp: row counts; rows with their weights to the experts; rows back. `routed`: the rows of this rank.
  void exchange_rows(const HybridLmConfig& c, std::int64_t routed, bool needs_gradient) {
    const std::int64_t pieces = overlap_.expert_pieces, counts = pieces * c.experts * PaperOps::kIndex;
    const std::int64_t from_experts = routed * c.hidden * ops_.element(),
                       to_experts = from_experts + routed * ops_.wide();
    const auto count = [&](const Collective& call) {
      ops_.communicate({.call = call, .once = true, .has_transpose = false}, needs_gradient);
    };
    const auto dispatch = [&](const Collective& call) {
      ops_.communicate({.call = call, .again = recompute_.experts, .pieces_again = pieces}, needs_gradient);
    };
    const auto combine = [&](const Collective& call) {
      ops_.communicate({.call = call, .once = true}, needs_gradient);
    };
    count({"ep", "all_to_all", counts});
    count({"expt_tp", "all_gather", expt_tp_ * counts});
    dispatch({"ep", "all_to_all", to_experts, pieces});
    dispatch({"expt_tp", "all_to_all", expt_tp_ * to_experts, pieces});
    combine({"expt_tp", "all_to_all", expt_tp_ * from_experts, pieces});
    combine({"ep", "all_to_all", from_experts, pieces});
  }

  // Rows that go to experts, and their weights.
  struct Dispatched {
    PaperTensor rows, weights;
  };
  Dispatched dispatched(const PaperTensor& tokens, const PaperTensor& weights, const PaperMemory& order,
                        std::int64_t top_k) {
    const PaperTensor rows = ops_.permute(tokens, order, top_k);
    if (ep_ * expt_tp_ == 1) return {rows, weights};
    return {rows, ops_.copy(weights, rows.rows, 1)};  // in the order of the rows
  }

  // The order of received rows by expert and by source, and where the rows of each expert end.
  PaperMemory row_places(const HybridLmConfig& c, std::int64_t received) {
    constexpr std::int64_t kInt = 4;
    return ops_.make(2 * received * PaperOps::kIndex + c.experts / ep_ * kInt);
  }

  // nn/moe.cpp: await(), the products, start_combine()
  PaperTensor run_experts(const HybridLmConfig& c, Dispatched sent, const PaperMemory& places) {
    const std::int64_t own = sent.rows.rows, received = own * expt_tp_;
    const bool is_local = ep_ * expt_tp_ == 1;
    const OperatorWork sorted = ops_.works(true).copied(Operator::Rows, 2 * real(received) * real(c.hidden));
    const auto arrived = [&](PaperTensor x, const OperatorWork& work) {
      if (is_local) return x;
      if (ep_ > 1) x = ops_.copy(x, own, x.columns);
      if (expt_tp_ > 1) x = ops_.copy(ops_.copy(x, received, x.columns), received, x.columns);
      return ops_.copy(x, received, x.columns, work, places);  // by expert
    };
    PaperTensor outputs;
    {
      const PaperTensor weights = arrived(std::exchange(sent.weights, {}), {});
      const PaperTensor inner = ops_.linear(arrived(std::exchange(sent.rows, {}), sorted), expert_weight(c, true));
      const PaperTensor value = ops_.scaled_activation(inner, weights, recompute_.activations && !is_fp8(c));
      const PaperRecomputable activated =
          ops_.recomputable(value, recompute_.activations, inner.memory, weights.memory);
      outputs = ops_.linear(activated, expert_weight(c, false));
    }
    if (is_local) return outputs;
    outputs = ops_.copy(outputs, received, c.hidden, sorted, places);  // by source
    if (expt_tp_ > 1) {
      outputs = ops_.copy(outputs, received, c.hidden);
      outputs = ops_.copy(outputs, own, c.hidden);  // their sum
    }
    return ep_ > 1 ? ops_.copy(outputs, own, c.hidden) : outputs;
  }

  PaperMixers ops_;
  const PaperMaps maps_;
  const std::int64_t tp_, ep_, expt_tp_;
  const RecomputeConfig recompute_;
  const OverlapConfig overlap_;
  const TextSizes text_;
  const PaperSequences sequences_;
  const bool trains_;
  const std::int64_t tokens_;  // of this rank's share of the sequence
  PaperMemory labels_;
};

// --- operations, counted in a walk

// Of one sequence: longer than the chunks of a scan, and a power of two, so that shares of it are exact.
constexpr std::int64_t kTokens = 1 << 20;

LanguageConfig in_one_stage(LanguageConfig config) {
  if (auto* hybrid = std::get_if<HybridLmConfig>(&config)) hybrid->pattern = layer_letters(*hybrid);
  return config;
}

Flops forward_of_sequence(const LanguageConfig& config) {
  const Topology alone({.modules = {{.name = "language", .kind = ModuleKind::Language}}}, {});
  const TextSizes text = {.tokens = kTokens, .labels = kTokens, .squares = double{kTokens} * kTokens};
  Flops flops;
  for (const PaperLayer& layer : walk_stage(in_one_stage(config), alone.language(), 0, {}, text, true).layers)
    for (const Work& work : layer.work.forward) {
      if (counts_bytes(work.op)) continue;
      double& sum = work.op == Operator::Attention ? flops.attention
                    : work.op == Operator::Scan    ? flops.scan
                                                   : flops.linear;
      sum += work.amount * work.count;
    }
  return flops;
}

}  // namespace

StageOnPaper walk_stage(const LanguageConfig& config, const Module& module, int stage, const LayerOptions& options,
                        const TextSizes& text, bool trains) {
  LanguageWalk walk(module, options, text, trains);
  return std::visit([&](const auto& c) { return walk.stage(c, stage, stage_count(module)); }, config);
}

Flops count_flops(const LanguageConfig& config, double tokens, double sequence_length) {
  const Flops forward = forward_of_sequence(config);
  const double share = 3 * tokens / kTokens;  // backward costs twice as much as forward
  return {forward.linear * share, forward.attention * share * (sequence_length / kTokens), forward.scan * share};
}

// optim/sharded_adam: the norm reads the gradient; the update reads gradient, main copy and moments, and writes all but
// the gradient, and the parameter.
Works update_work(double updated, double quantized, const LayerOptions& options) {
  const double e = static_cast<double>(options.element_bytes), wide = std::max(e, 4.0);
  Works works;
  if (updated > 0) works.push_back(stream_work(Operator::Update, updated * (8 * wide + e), 3));
  if (quantized > 0) works.push_back(stream_work(Operator::Quantize, quantized * (2 * e + 2), 3));
  return works;
}

// Moe::update_expert_biases()
Collectives update_collectives(const LanguageConfig& config, const Module& module, const std::vector<int>& stages,
                               const LayerOptions& options) {
  const auto* c = std::get_if<HybridLmConfig>(&config);
  if (!c) return {};
  const std::vector<int> bounds = stage_bounds(*c, stage_count(module));
  const std::string letters = layer_letters(*c);
  std::int64_t layers = 0;
  for (const int stage : stages)
    layers += std::count(letters.begin() + bounds[stage], letters.begin() + bounds[stage + 1], 'E');
  const std::int64_t wide = std::max<std::int64_t>(options.element_bytes, 4);
  return {{"dp-cp-tp", "all_reduce", layers * c->experts * wide}};
}

}  // namespace braid
