#include "models/stage_memory.h"

#include <cmath>
#include <utility>

#include "models/even_stages.h"
#include "models/paper_ops.h"
#include "plan/pipeline.h"

namespace braid {
namespace {

constexpr std::int64_t kIndex = 8;  // bytes of an int64

// nn/residual.h
class PaperResidual {
 public:
  PaperResidual(PaperOps& ops, PaperTensor x) : ops_(&ops), x_(std::move(x)) {}

  void add(PaperTensor branch) {
    value();
    pending_ = std::move(branch);
  }
  const PaperTensor& value() {
    if (pending_) x_ = ops_->sum(x_, *std::exchange(pending_, std::nullopt));
    return x_;
  }
  // Sets the pending branch's memory free, as the real one does, before the caller goes on.
  PaperRecomputable normed(bool trains, bool has_mean, bool recomputed) {
    PaperTensor result;
    if (pending_) {
      auto [sum, normed] = ops_->add_norm(x_, *pending_, trains, has_mean);
      pending_.reset();
      x_ = std::move(sum);
      result = std::move(normed);
    } else {
      result = ops_->norm(x_, trains, has_mean);
    }
    if (!recomputed) return result;
    return {result, [ops = ops_, x = x_.memory, rows = x_.rows, columns = x_.columns] {
              return ops->norm_again(rows, columns);
            }};
  }

 private:
  PaperOps* ops_;
  PaperTensor x_;
  std::optional<PaperTensor> pending_;
};

// nn/recompute.h: add_layer()
template <class Add>
void add_layer(PaperOps& ops, PaperResidual& stream, const Add& add, bool recomputed, bool trains) {
  if (!recomputed) return add(stream);
  const auto layer = [&ops, add](const PaperOps::Tensors& in) -> PaperOps::Tensors {
    PaperResidual input(ops, in[0]);
    add(input);
    return {input.value()};
  };
  stream = PaperResidual(ops, ops.recompute(layer, {PaperRecomputable(stream.value())}, trains)[0]);
}

// nn/linear.h, with the groups of nn/parallel.h.
class PaperMaps {
 public:
  PaperMaps(PaperOps& ops, std::int64_t tp, std::int64_t cp, bool sequence_parallel, std::int64_t pieces)
      : ops_(ops), tp_(tp), cp_(cp), sequence_parallel_(sequence_parallel && tp > 1), pieces_(pieces) {}

  bool sequence_parallel() const { return sequence_parallel_; }
  std::int64_t cp() const { return cp_; }

  PaperTensor columns(const PaperRecomputable& x, PaperWeight weight) const {
    weight.out /= tp_;
    const bool in_one_piece = sequence_parallel_ && x.value.rows > 0 && !weight.fp8;
    return in_one_piece || is_cut(x.value.rows) ? ops_.gather_and_multiply(x, weight, tp_)
                                                : ops_.linear(gathered(x), weight);
  }
  PaperTensor rows(const PaperRecomputable& x, PaperWeight weight) const {
    weight.in /= tp_;
    if (is_cut(x.value.rows / tp_)) return ops_.multiply_and_scatter(x, weight, tp_);
    return reduce_to_sequence(ops_.linear(x, weight));
  }
  PaperTensor reduce_to_sequence(const PaperTensor& partial) const {
    if (tp_ == 1) return partial;
    return sequence_parallel_ ? ops_.reduce_scatter(partial, tp_) : ops_.all_reduce(partial);
  }
  PaperRecomputable gathered(const PaperRecomputable& x) const {
    if (!sequence_parallel_) return x;
    const PaperTensor all = ops_.all_gather(x.value, tp_);
    if (!x.again) return all;
    return {all, [ops = &ops_, again = x.again, bytes = all.bytes()] {
              const PaperMemory own = again();
              return ops->tape().make(bytes);
            }};
  }
  PaperTensor gather_features(const PaperTensor& x) const { return tp_ == 1 ? x : ops_.gather_columns(x, tp_); }
  std::int64_t own_rows(std::int64_t rows) const { return tp_ == 1 || sequence_parallel_ ? rows : rows / tp_; }
  PaperTensor all_rows(const PaperTensor& own) const {
    return tp_ == 1 || sequence_parallel_ ? own : ops_.all_gather(own, tp_);
  }
  // A rank's rows of all its columns become all rows of its share of the columns, `copies` times as many; and back.
  PaperTensor sequence_to_heads(const PaperTensor& x, std::int64_t columns) const {
    if (cp_ == 1) return x;
    const PaperTensor by_rank = ops_.copy(x, x.rows, columns * cp_);
    return ops_.exchange(by_rank, x.rows * cp_, columns);
  }
  PaperTensor heads_to_sequence(const PaperTensor& x) const {
    if (cp_ == 1) return x;
    const PaperTensor by_rank = ops_.exchange(x, x.rows, x.columns);
    return ops_.copy(by_rank, x.rows / cp_, x.columns * cp_);
  }

 private:
  bool is_cut(std::int64_t rows) const { return sequence_parallel_ && std::min(pieces_, rows) > 1; }

  PaperOps& ops_;
  const std::int64_t tp_, cp_;
  const bool sequence_parallel_;
  const std::int64_t pieces_;
};

PaperSequences sequences_of(const TextSizes& text) {
  const auto tokens = static_cast<double>(text.tokens);
  const std::int64_t count =
      text.squares > 0 ? std::max<std::int64_t>(1, std::llround(tokens * tokens / text.squares)) : 1;
  return {text.tokens, count, (text.tokens + count - 1) / count};
}

// ops/packed_sequences.cpp: the tables of a microbatch, in one tensor
std::int64_t table_bytes(const PaperSequences& sequences) {
  constexpr std::int64_t kScanChunk = 128, kInt = 4;
  return kInt * (4 * sequences.chunks_of(kScanChunk) + (sequences.count + 2) / 2 * 2 + 4 * sequences.tokens);
}

// Runs a stage's forward, and its backward if it has one. `forward`: () -> the output
template <class Forward>
StageMemory measured(PaperOps& ops, const Forward& forward) {
  PaperTape& tape = ops.tape();
  const MemoryLedger& ledger = tape.ledger();
  const auto peaks = [&] { return PeakBytes{ledger.peak(), ledger.choosing_peak()}; };
  StageMemory memory;
  PaperTensor output = forward();
  memory.output = output.bytes();
  memory.forward = peaks();
  memory.saved = ledger.live();
  if (!output.trains()) return memory;
  tape.ledger().forget_peaks();
  tape.pass(output, tape.make(output.bytes()));
  tape.backward(0);
  memory.backward = peaks();
  return memory;
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
    const PaperMemory tables = ops_.tape().make(table_bytes(sequences_));
    // What the stage before sends is kept by the executor, too; embedded text is not.
    const std::int64_t own_rows = maps_.sequence_parallel() ? tokens_ / tp_ : tokens_;
    PaperTensor received = is_first ? PaperTensor() : ops_.matrix(own_rows, c.hidden);
    if (!is_first) received.gradient = std::make_shared<PaperMemory>();
    std::int64_t logits = 0;
    StageMemory memory = measured(ops_, [&] {
      PaperResidual stream(ops_, is_first ? embedded(c.hidden) : received);
      for (int layer = bounds[begin]; layer < bounds[begin + 1]; ++layer)
        add_layer(
            ops_, stream, [this, &c, layer](PaperResidual& to) { add(c, layer, to); }, recompute_.full, trains_);
      return is_last ? loss(stream.value(), c.hidden, c.vocab, logits) : stream.value();
    });
    memory.input = received.bytes();
    if (is_last) memory.output = 0;
    memory.logits = logits;
    return memory;
  }

 private:
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

  static bool is_fp8(const HybridLmConfig& c) { return c.fp8 == "rowwise"; }
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
      return {ops_.scan(ops_.convolution(xbc, trains_), steps, own, sequences_)};
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
    const PaperMemory order = ops_.expert_order(own.value.rows * c.top_k, c.experts);

    const bool is_local = ep_ == 1 && expt_tp_ == 1, fused = is_fp8(c) && is_local && own.value.rows > 0;
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
        outputs = run_experts(c, *std::exchange(rows, std::nullopt));
      } else {
        const auto from_tokens = [this, &c, order](const PaperOps::Tensors& in) -> PaperOps::Tensors {
          return {run_experts(c, dispatched(in[0], in[1], order, c.top_k))};
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

  // nn/expert_exchange.cpp: await(), the products, start_combine()
  PaperTensor run_experts(const HybridLmConfig& c, Dispatched sent) {
    const std::int64_t own = sent.rows.rows, received = own * expt_tp_;
    const bool is_local = ep_ * expt_tp_ == 1;
    const auto arrived = [&](PaperTensor x) {
      if (is_local) return x;
      if (ep_ > 1) x = ops_.exchange(x, own, x.columns);
      if (expt_tp_ > 1) x = ops_.exchange(ops_.copy(x, received, x.columns), received, x.columns);
      return ops_.copy(x, received, x.columns);  // by expert
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
    outputs = ops_.copy(outputs, received, c.hidden);  // by source
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

class EncoderPaper {
 public:
  EncoderPaper(const EncoderConfig& config, const Module& module, const LayerOptions& options,
               const std::vector<std::vector<std::int64_t>>& extents, const EncoderTraining& trains)
      : config_(config),
        layers_(std::visit([](const auto& c) { return layers_of(c); }, config.model)),
        ops_({options.element_bytes, options.on_gpu, options.deterministic}),
        maps_(ops_, group_size(module, "tp"), group_size(module, "cp"), false, 1),
        tp_(group_size(module, "tp")),
        recompute_(in_encoder(options.recompute)),
        trains_(trains) {
    for (const auto& extent : extents) {
      const std::int64_t hidden = hidden_rows_of(config.model, extent);
      hidden_rows_ += hidden;
      embedded_rows_ += is_audio() ? hidden : extent.at(0) * extent.at(1);
      embeddings_ += rows_of(config, extent);
      sequences_.longest = std::max(sequences_.longest, hidden);
    }
    sequences_.tokens = hidden_rows_;
    sequences_.count = std::max<std::int64_t>(1, std::ssize(extents));
  }

  StageMemory stage(int stage, int stages) {
    const std::vector<int> bounds = even_stages(layers_.layers, stages);
    const auto begin = static_cast<std::size_t>(stage);
    const bool is_first = stage == 0, is_last = stage == stages - 1;
    const PaperMemory tables = ops_.tape().make(trains_.encoder ? table_bytes(sequences_) : 0);
    PaperTensor received = is_first ? PaperTensor() : ops_.matrix(hidden_rows_, layers_.hidden);
    if (!is_first && trains_.encoder) received.gradient = std::make_shared<PaperMemory>();
    StageMemory memory = measured(ops_, [&] {
      PaperTensor x;
      {
        const PaperTape::Mode mode(ops_.tape(), trains_.encoder);
        PaperResidual stream(ops_, is_first ? embedded() : received);
        for (int layer = bounds[begin]; layer < bounds[begin + 1]; ++layer)
          add_layer(
              ops_, stream, [this](PaperResidual& to) { add(to); }, recompute_.full, trains_.encoder);
        x = stream.value();
        if (is_last) x = features(std::move(x));
      }
      return is_last ? projected(x) : x;
    });
    memory.input = received.bytes();
    return memory;
  }

 private:
  bool is_audio() const { return std::holds_alternative<AudioConfig>(config_.model); }
  PaperWeight weight(std::int64_t in, std::int64_t out) const {
    return {.in = in, .out = out, .trains = trains_.encoder};
  }

  // Of images: patches, to which positions are added, behind class tokens. Of audio: pairs of frames.
  PaperTensor embedded() {
    const std::int64_t features = features_of(config_.model) * (is_audio() ? 2 : 1);
    const PaperTensor values = ops_.matrix(embedded_rows_, features);
    PaperTensor x = maps_.columns(values, weight(features, layers_.hidden));
    if (is_audio()) x = ops_.activation(x, x.columns);
    x = maps_.gather_features(x);
    x = ops_.copy(x, hidden_rows_, layers_.hidden);
    return std::holds_alternative<ClipConfig>(config_.model) ? ops_.norm(x, trains_.encoder, true) : x;
  }

  // models/encoder_layers.cpp
  void add(PaperResidual& stream) {
    const std::int64_t hidden = layers_.hidden, heads = layers_.heads / tp_, width = hidden / layers_.heads;
    const auto normed = [&] { return stream.normed(trains_.encoder, true, recompute_.norms); };
    const auto scaled = [&](PaperTensor branch) {
      if (!layers_.layer_scale) return branch;
      return ops_.scaled_by_channel(ops_.sum(branch, PaperTensor()), trains_.encoder);
    };
    {
      const PaperTensor attended = [&] {
        const PaperTensor qkv = maps_.columns(normed(), weight(hidden, 3 * hidden));
        return ops_.attention(qkv, {heads, 1, width, false}, sequences_);
      }();
      stream.add(scaled(maps_.rows(attended, weight(hidden, hidden))));
    }
    const PaperTensor inner = maps_.columns(normed(), weight(hidden, layers_.ffn));
    stream.add(scaled(layers_.gelu == "quick" ? quick_mlp(inner) : gelu_mlp(inner)));
  }
  PaperTensor quick_mlp(const PaperTensor& inner) {
    const PaperTensor value = ops_.activation(inner, inner.columns);
    PaperRecomputable activated = value;
    if (recompute_.activations) activated.again = again(inner, value);
    return maps_.rows(activated, weight(layers_.ffn, layers_.hidden));
  }
  PaperTensor gelu_mlp(const PaperTensor& inner) {
    const PaperTensor value = ops_.matrix(inner.rows, inner.columns);
    PaperRecomputable activated = value;
    if (recompute_.activations) activated.again = again(inner, value);
    return maps_.reduce_to_sequence(ops_.linear_of_gelu(inner, activated, weight(layers_.ffn / tp_, layers_.hidden)));
  }
  PaperRecomputable::Function again(const PaperTensor& inner, const PaperTensor& value) {
    return [this, kept = inner.memory, bytes = value.bytes()] { return ops_.tape().make(bytes); };
  }

  // Without class tokens, 2 x 2 patches as one row.
  PaperTensor features(PaperTensor x) {
    const auto* radio = std::get_if<RadioConfig>(&config_.model);
    if (is_audio() || (radio && radio->final_norm)) x = ops_.norm(x, trains_.encoder, true);
    if (is_audio()) return x;
    if (!radio || radio->class_tokens > 0) x = ops_.copy(x, embedded_rows_, layers_.hidden);
    return config_.pixel_shuffle ? ops_.copy(x, embedded_rows_ / 4, 4 * x.columns) : x;
  }

  // models/projector.cpp
  PaperTensor projected(PaperTensor x) {
    const ProjectorConfig& c = config_.projector;
    x.rows = embeddings_;  // of audio, several rows become one
    x.columns = c.input;
    const auto map = [&](std::int64_t in, std::int64_t out) {
      return PaperWeight{.in = in, .out = out, .trains = trains_.projector};
    };
    if (c.kind == "affine") return maps_.gather_features(maps_.columns(x, map(c.input, c.output)));
    const PaperTensor inner = maps_.columns(x, map(c.input, c.hidden));
    return maps_.rows(ops_.activation(inner, inner.columns), map(c.hidden, c.output));
  }

  const EncoderConfig& config_;
  const EncoderLayersConfig layers_;
  PaperOps ops_;
  const PaperMaps maps_;
  const std::int64_t tp_;
  const RecomputeConfig recompute_;
  const EncoderTraining trains_;
  PaperSequences sequences_;
  std::int64_t hidden_rows_ = 0, embedded_rows_ = 0, embeddings_ = 0;
};

}  // namespace

StageMemory memory_of(const LanguageConfig& config, const Module& module, int stage, const LayerOptions& options,
                      const TextSizes& text, bool trains) {
  LanguagePaper paper(module, options, text, trains);
  return std::visit([&](const auto& c) { return paper.stage(c, stage, stage_count(module)); }, config);
}

StageMemory memory_of(const EncoderConfig& config, const Module& module, int stage, const LayerOptions& options,
                      const std::vector<std::vector<std::int64_t>>& extents, const EncoderTraining& trains) {
  return EncoderPaper(config, module, options, extents, trains).stage(stage, stage_count(module));
}

}  // namespace braid
