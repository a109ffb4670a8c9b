// Parts of layers on tensors without values (paper/ops.h): operators that mix tokens (attention, Mamba2's mixer, the
// router, rows on their way to experts and back, experts in fp8), the residual stream, linear maps with their groups,
// the measurement of a stage's memory. No libtorch here.
#pragma once

#include "paper/ops.h"
#include "paper/stage.h"

namespace braid {

class PaperMixers : public PaperOps {
 public:
  using PaperOps::PaperOps;

  struct Heads {
    std::int64_t groups = 1, queries = 1, width = 0;  // queries: of each group
    bool causal = true;
    std::int64_t all() const { return groups * queries; }
  };
  struct Mixer {
    std::int64_t heads = 0, width = 0, groups = 0, state = 0, chunk = 128, taps = 4;
    bool trains = true;
    std::int64_t inner() const { return heads * width; }
    std::int64_t convolved() const { return heads * width + 2 * groups * state; }
    std::int64_t features() const { return inner() + convolved() + heads; }
  };
  // Its parts. With context parallelism, a rank has all heads of its tokens, or all tokens of its share of the heads.
  struct MixerWork {
    OperatorWork convolution, scan, gated_norm;
  };
  struct Routing {
    PaperTensor scores, weights;
    PaperMemory experts;
  };
  struct Routed {
    PaperTensor logits;
    std::vector<PaperTensor> tokens;
  };
  struct ExpertMlp {
    PaperWeight fc1, fc2;
    std::int64_t top_k = 1;
  };

  // ops/attention.cpp: cudnn_shape(), and kernels/cudnn_attention.cpp: backward_piece(). cuDNN's deterministic
  // algorithm allocates one bf16 matrix of scores per head. Its other algorithm sums the gradients of queries in fp32.
  // Flash attention allocates copies of the inputs, and several such sums.
  std::int64_t attention_workspace(const Heads& heads, const PaperSequences& sequences) const {
    const auto ceil = [](std::int64_t size) {
      return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(1, size))));
    };
    const bool one = sequences.count == 1, whole_sequences = heads.queries == 1 && sequences.have_one_length() && !one;
    const bool packed = !whole_sequences && !(heads.causal && one);
    const std::int64_t groups = heads.all() / heads.queries;
    const std::int64_t parts = whole_sequences ? sequences.count : packed ? ceil(sequences.count) * groups : groups;
    const std::int64_t heads_of_part = whole_sequences ? heads.all() : heads.queries;
    const std::int64_t length = packed ? std::max<std::int64_t>(128, ceil(sequences.longest)) : sequences.longest;
    constexpr std::int64_t kMultiple = 64, kScore = 2;
    const std::int64_t padded = round_up(length, kMultiple), sums = length * heads.width * kFloat;
    const std::int64_t part =
        heads_of_part * ((options_.deterministic ? padded * padded * kScore : sums) + length * kFloat);

    constexpr std::int64_t kGood = std::int64_t{2} << 30, kMost = std::int64_t{9} << 30;
    if (parts * part <= kGood) return parts * part;
    const std::int64_t least = packed ? 4 : 4 / std::gcd(std::int64_t{4}, heads_of_part * length);
    std::int64_t piece = std::max(least, kGood / part / least * least);
    while (piece > 0 && parts % piece != 0) piece -= least;
    if (piece == 0) piece = parts;
    if (piece * part <= kMost) return piece * part;
    constexpr std::int64_t kProcessors = 132;
    const std::int64_t splits = options_.deterministic ? (kProcessors + heads.all() - 1) / heads.all() : 1;
    return sequences.tokens * heads.width * ((heads.all() + 2 * groups) * element() + heads.all() * splits * kFloat);
  }

  PaperTensor attention(const PaperTensor& groups, const Heads& heads, const PaperSequences& sequences) {
    const PaperTensor out = matrix(groups.rows, heads.all() * heads.width);
    const PaperMemory log_sum_exp = make(groups.rows * heads.all() * wide());
    if (!options_.on_gpu) ledger().touch(groups.elements() * wide());
    const OperatorWork work =
        works(true).attention(real(groups.rows), real(heads.all()), real(heads.width), sequences.squares, heads.causal);
    return differentiable(work, out, groups.trains(), [=, this, saved = out.memory](const PaperMemory&) {
      keep(saved, log_sum_exp);
      const PaperMemory grad = make(groups.bytes());
      ledger().touch(options_.on_gpu ? attention_workspace(heads, sequences) : groups.elements() * 2 * wide());
      pass(groups, grad);
    });
  }

  std::int64_t chunks(const PaperSequences& sequences, const Mixer& mixer) const {
    constexpr std::int64_t kKernelChunk = 128;
    const std::int64_t longest = std::max<std::int64_t>(1, sequences.longest);
    return sequences.chunks_of(has_scan_kernel(mixer) ? kKernelChunk : std::min(mixer.chunk, longest));
  }

  bool has_scan_kernel(const Mixer& mixer) const {
    return options_.on_gpu && element() == 2 && mixer.width == 64 && (mixer.state == 64 || mixer.state == 128);
  }

  // States before each chunk; ATen also keeps the last state, kernels four numbers per token and head.
  PaperMemory scan_states(const Mixer& mixer, const PaperSequences& sequences) {
    const std::int64_t count = chunks(sequences, mixer), numbers = mixer.inner() * mixer.state;
    if (!has_scan_kernel(mixer)) return make((count + 1) * numbers * wide());
    constexpr std::int64_t kStepNumbers = 4 * 128;
    const std::int64_t states = ledger().rounded(count * numbers * element());
    return make(states + count * mixer.heads * kStepNumbers * kFloat);
  }

  // kernels/ssd_scan_backward.cu. ATen's operators widen and reorder everything, in blocks of chunks.
  void scan_scratch(const Mixer& mixer, const PaperSequences& sequences, bool backward) {
    const std::int64_t count = chunks(sequences, mixer), numbers = mixer.inner() * mixer.state;
    if (has_scan_kernel(mixer)) {
      constexpr std::int64_t kPassed = 256, kTokenNumbers = 6 * 128, kScores = 128 * 128;
      if (backward)
        ledger().touch(count * (numbers * element() + numbers / kPassed * kFloat +
                                mixer.heads * (kTokenNumbers + 3) * kFloat + mixer.groups * kScores * element()));
      return;
    }
    constexpr std::int64_t kBlockNumbers = std::int64_t{1} << 24;
    const std::int64_t tokens = sequences.tokens, length = std::min(mixer.chunk, std::max<std::int64_t>(1, tokens));
    const std::int64_t block = std::min(kBlockNumbers, mixer.heads * length * std::max(tokens, length));
    ledger().touch(
        (tokens * (mixer.convolved() + mixer.heads) + (backward ? count * numbers : 0) + (backward ? 6 : 3) * block) *
        wide());
  }

  // What a call of the mixer saves besides its input.
  struct MixerSaved {
    PaperMemory convolved, y, states, inverse_root;
  };

  PaperMemory mix(const PaperTensor& features, const Mixer& mixer, const PaperSequences& sequences, MixerSaved& saved) {
    saved.convolved = make(features.rows * mixer.convolved() * element());
    wide_copies(features.rows * mixer.convolved(), 2);
    saved.y = make(features.rows * mixer.inner() * element());
    saved.states = scan_states(mixer, sequences);
    scan_scratch(mixer, sequences, false);
    saved.inverse_root = make(features.rows * mixer.groups * wide());
    wide_copies(features.rows * mixer.inner(), 3);
    return make(features.rows * mixer.inner() * element());
  }

  MixerWork mixer_work(const Mixer& mixer, std::int64_t cp, const PaperSequences& sequences) const {
    const Operators works = this->works(mixer.trains);
    const double inner = real(mixer.inner()), states = real(mixer.groups * mixer.state), state = real(mixer.state);
    const double scanned = real(sequences.tokens), tokens = scanned / real(cp), share = 1 / real(cp);
    const double chunk = std::min(real(mixer.chunk), sequences.squares > 0 ? sequences.squares / scanned : 1e9);
    const double amount = 2 * scanned * share * ((states + inner) * chunk / 2 + 2 * inner * state);
    const std::array<double, 3> size = {scanned, real(mixer.heads) * share, real(mixer.width) * state};
    const double convolved = tokens * real(mixer.convolved());
    // The convolution's weight and bias, A_log, D, dt_bias, and the norm's weight have small gradients.
    return {.convolution = {works.stream(Operator::Convolution, 2 * convolved),
                            works.stream(Operator::ConvolutionBackward, 3 * convolved, 2)},
            .scan = {{{.op = Operator::Scan, .amount = amount, .size = size, .launches = 3}},
                     {{.op = Operator::ScanBackward, .amount = 2 * amount, .size = size, .launches = 5}}},
            .gated_norm = {
                works.stream(Operator::GatedNorm, 3 * tokens * inner),
                works.small_gradients(6, inner) + works.stream(Operator::GatedNormBackward, 5 * tokens * inner, 2)}};
  }

  PaperRecomputable mamba_mixer(const PaperTensor& features, const Mixer& mixer, const PaperSequences& sequences,
                                bool recompute_output, bool recompute_all) {
    const auto saved = std::make_shared<std::optional<MixerSaved>>();
    const auto run = [=, this](const PaperTensor& from) { return mix(from, mixer, sequences, saved->emplace()); };
    PaperTensor output = {features.rows, mixer.inner(), element(), run(features)};
    const MixerWork parts = mixer_work(mixer, 1, sequences);
    OperatorWork work = repeated_if(recompute_all, parts.convolution + parts.scan + parts.gated_norm);
    if (recompute_output && !recompute_all) work.backward = parts.gated_norm.forward + work.backward;
    output = differentiable(work, output, features.trains() || mixer.trains, [=, this](const PaperMemory&) {
      if (!*saved) run(features);
      const PaperMemory features_grad = make(features.bytes()), y_grad = matrix(features.rows, mixer.inner()).memory,
                        convolved_grad = matrix(features.rows, mixer.convolved()).memory;
      wide_copies(features.rows * mixer.convolved(), 3);
      scan_scratch(mixer, sequences, true);
      pass(features, features_grad);
    });
    if (recompute_all || !records()) saved->reset();
    if (!recompute_all && !recompute_output) return output;
    return {output, [=, this] { return *saved ? make(features.rows * mixer.inner() * element()) : run(features); }};
  }

  PaperTensor convolution(const OperatorWork& work, const PaperTensor& x, const Mixer& mixer) {
    wide_copies(x.elements(), 2);
    const PaperMemory filter = make(x.columns * (mixer.taps + 1) * element());
    return node(work, like(x), x.trains() || mixer.trains, {x}, {filter}, 2 * x.elements());
  }

  PaperTensor scan(const OperatorWork& work, const PaperTensor& convolved, const PaperTensor& steps, const Mixer& mixer,
                   const PaperSequences& sequences) {
    const PaperTensor y = matrix(convolved.rows, mixer.inner());
    const PaperMemory states = scan_states(mixer, sequences), of_heads = make(3 * mixer.heads * element());
    scan_scratch(mixer, sequences, false);
    return differentiable(work, y, convolved.trains() || mixer.trains, [=, this](const PaperMemory&) {
      keep(states, of_heads);
      scan_scratch(mixer, sequences, true);
      pass(convolved, make(convolved.bytes()));
      pass(steps, make(steps.bytes()));
    });
  }

  PaperTensor gated_norm(const OperatorWork& work, const PaperTensor& y, const PaperTensor& z, const Mixer& mixer) {
    const PaperMemory inverse_root = make(y.rows * mixer.groups * wide());
    wide_copies(y.elements(), 3);
    return differentiable(work, like(y), y.trains() || z.trains() || mixer.trains, [=, this](const PaperMemory&) {
      keep(inverse_root);
      wide_copies(y.elements(), 5);
      const PaperMemory z_grad = make(y.bytes());
      pass(y, make(y.bytes()));
      pass(z, z_grad);
    });
  }

  // --- ops/moe.h

  Routed router(const PaperRecomputable& input, std::int64_t experts, bool trains, std::size_t other_users) {
    const PaperTensor& x = input.value;
    Routed routed;
    routed.logits = matrix(x.rows, experts, wide());
    wide_copies(element() < wide() ? x.elements() : 0, 1);
    Tensors outputs(x.trains() ? other_users : 0, x);
    outputs.insert(outputs.begin(), routed.logits);
    outputs = differentiable(works(trains).router(real(x.rows), real(x.columns), real(experts)), std::move(outputs),
                             x.trains() || trains, [this, saved = input.saved_if(true), to_x = target(x)](const auto&) {
                               const PaperMemory tokens = saved();
                               wide_copies(to_x.elements(), element() < wide() ? 2 : 1);
                               if (to_x.trains()) pass(to_x, make(to_x.bytes()));
                             });
    routed.logits = outputs[0];
    routed.tokens.assign(outputs.begin() + 1, outputs.end());
    routed.tokens.resize(other_users, x);
    return routed;
  }

  Routing route(const PaperTensor& logits, std::int64_t top_k) {
    Routing routing;
    routing.scores = matrix(logits.rows, logits.columns, wide());
    routing.experts = make(logits.rows * top_k * kIndex);
    if (!options_.on_gpu) ledger().touch(logits.elements() * (2 * wide() + 2 * kIndex));
    routing.weights = matrix(logits.rows, top_k, wide());
    const Tensors outputs = differentiable(
        {}, {routing.scores, routing.weights}, logits.trains(),
        [this, to_logits = target(logits), scores = routing.scores.memory, experts = routing.experts](const auto&) {
          keep(scores, experts);
          wide_copies(to_logits.elements(), 2);
          pass(to_logits, make(to_logits.bytes()));
        });
    routing.scores = outputs[0];
    routing.weights = outputs[1];
    return routing;
  }

  PaperMemory expert_order(std::int64_t rows, std::int64_t experts) {
    const std::int64_t of_rows = 2 * ledger().rounded(rows * kIndex);
    if (!options_.on_gpu) ledger().touch(of_rows + 2 * rows * kIndex);
    return make(of_rows + ledger().rounded(experts * kIndex) + ledger().rounded(experts * kFloat));
  }

  PaperTensor permute(const PaperTensor& x, const PaperMemory& order, std::int64_t top_k) {
    const double elements = real(x.rows + x.rows * top_k) * real(x.columns);
    return differentiable(works(true).copied(Operator::Rows, elements), matrix(x.rows * top_k, x.columns), x.trains(),
                          [this, order, to_x = target(x), top_k](const PaperMemory&) {
                            keep(order);
                            if (!options_.on_gpu) ledger().touch((top_k + 1) * to_x.bytes());
                            pass(to_x, make(to_x.bytes()));
                          });
  }

  PaperTensor unpermute(const PaperTensor& rows, const PaperMemory& order, std::int64_t top_k,
                        const PaperTensor& added) {
    if (!options_.on_gpu) ledger().touch(rows.bytes());
    const double tokens = real(rows.rows / top_k), width = real(rows.columns);
    const OperatorWork work = {works(true).stream(Operator::Rows, (real(rows.rows) + 2 * tokens) * width),
                               works(true).stream(Operator::Rows, (real(rows.rows) + tokens) * width)};
    return differentiable(work, matrix(rows.rows / top_k, rows.columns), rows.trains() || added.trains(),
                          [this, order, to_rows = target(rows), to_added = target(added)](const PaperMemory& grad) {
                            keep(order);
                            if (to_rows.trains()) pass(to_rows, make(to_rows.bytes()));
                            pass(to_added, grad);
                          });
  }

  PaperTensor with_aux_loss(const PaperTensor& y, const PaperTensor& scores, std::int64_t samples) {
    const double elements = real(scores.elements());
    count({{stream_work(Operator::Stream, 8 * elements, 4)}, {stream_work(Operator::Stream, 12 * elements, 3)}},
          scores.trains());
    if (!records() || !scores.trains()) return y;
    const PaperMemory chosen = make((options_.on_gpu ? 2 : 1) * samples * scores.columns * wide());
    wide_copies(scores.elements(), 3);
    const auto reached = std::make_shared<bool>(false);
    add([this, scores, chosen, reached] {
      keep(chosen);
      wide_copies(scores.elements(), 3);
      if (*reached) pass(scores, make(scores.bytes()));
    });
    PaperTensor with_loss = y;
    with_loss.gradient = nullptr;
    return differentiable({}, with_loss, true, [this, to_y = target(y), reached](const PaperMemory& grad) {
      *reached = true;
      pass(to_y, grad);
    });
  }

  // --- experts in fp8

  // ops/expert_mlp_fp8.cpp permutes and activates rows as it quantizes them. A second run makes what backward reads.
  OperatorWork work_of(const ExpertMlp& mlp, std::int64_t own_tokens, bool recomputed) const {
    const Operators works = this->works(mlp.fc1.trains);
    const bool trains = mlp.fc1.trains;
    const double hidden = real(mlp.fc1.in), ffn = real(mlp.fc1.out), experts = real(mlp.fc1.matrices), e = works.e();
    const double tokens = real(own_tokens), rows = tokens * real(mlp.top_k);
    const auto permuted = [&](bool columns) {
      return Works{stream_work(Operator::QuantizeRows, tokens * hidden * e + rows * hidden * (columns ? e + 2 : 1), 3)};
    };
    const OperatorWork fc1 = works.grouped(rows, experts, ffn, hidden, true),
                       fc2 = works.grouped(rows, experts, hidden, ffn, true);
    const auto activated = [&](bool columns) {
      return permuted(columns) + fc1.forward +
             Works{stream_work(Operator::QuantizeActivation, rows * ffn * (columns ? 2 * e + 2 : e + 1), 3)};
    };
    OperatorWork work = {activated(trains && !recomputed)};
    if (!in_second_run()) work.forward += fc2.forward + works.stream(Operator::Rows, (rows + 2 * tokens) * hidden);
    if (recomputed) work.backward = activated(trains);
    work.backward += permuted(trains) + fc2.backward +
                     Works{stream_work(Operator::QuantizeActivationBackward, rows * ffn * (4 * e + 2), 3)} +
                     fc1.backward + works.stream(Operator::Rows, (rows + tokens) * hidden);
    return work;
  }

  PaperTensor expert_mlp_fp8(const PaperRecomputable& tokens, const PaperTensor& weights, const PaperTensor& added,
                             const ExpertMlp& mlp, const PaperMemory& order, bool recomputed) {
    struct Saved {
      PaperMemory rows, activated, inner, scales;
    };
    const std::int64_t hidden = mlp.fc1.in, ffn = mlp.fc1.out, rows = tokens.value.rows * mlp.top_k,
                       experts = mlp.fc1.matrices;
    const bool trains = mlp.fc1.trains;
    // activate(): what is saved, and fc2's input, which is not
    const auto activate = [=, this](bool with_columns, PaperMemory& activated) {
      Saved saved;
      {
        const PaperMemory permuted = fp8(rows, hidden);
        if (with_columns) saved.rows = fp8_columns(rows, hidden, experts);
        saved.inner = make(rows * ffn * element());
        wide_copies(rows * (hidden + ffn), 1);
      }
      saved.scales = make(rows * wide());
      activated = fp8(rows, ffn);
      if (with_columns) saved.activated = fp8_columns(rows, ffn, experts);
      return saved;
    };
    PaperTensor y = matrix(tokens.value.rows, hidden);
    PaperMemory activated;
    Saved saved = activate(trains && !recomputed && records(), activated);
    {
      const PaperMemory outputs = make(rows * hidden * element());
      wide_copies(rows * (hidden + ffn), 1);
    }
    activated.reset();
    if (recomputed) saved = {};
    return differentiable(
        work_of(mlp, tokens.value.rows, recomputed), y, tokens.value.trains() || weights.trains() || trains,
        [=, this, again = tokens.saved_if(recomputed), of_weights = weights, to_tokens = target(tokens.value),
         to_added = target(added)](const PaperMemory& grad) {
          keep(order);
          Saved now = saved;
          PaperMemory activated_again;
          if (recomputed) {
            const PaperMemory from = again();
            now = activate(trains, activated_again);
          }
          PaperMemory of_activated;
          {
            const PaperMemory grad_rows = fp8(rows, hidden);
            const PaperMemory grad_columns = trains ? fp8_columns(rows, hidden, experts) : nullptr;
            of_activated = make(rows * ffn * element());
            wide_copies(rows * (hidden + ffn), 1);
          }
          PaperMemory inner_rows = fp8(rows, ffn), inner_columns = trains ? fp8_columns(rows, ffn, experts) : nullptr;
          ledger().touch(rows * ffn * element());  // the gradient before it is converted
          const PaperMemory of_rows = make(rows * hidden * element());
          pass(to_tokens, make(to_tokens.bytes()));
          pass(of_weights, make(of_weights.bytes()));
          pass(to_added, grad);
        });
  }
};

// nn/residual.h. The sum at the end of a stage counts in the first norm of the next one.
class PaperResidual {
 public:
  enum class Of { Stage, Layer };  // Layer: one that runs again in backward, whose sum is its own

  PaperResidual(PaperOps& ops, PaperTensor x, Of of, bool first_norm_adds)
      : ops_(&ops), x_(std::move(x)), of_(of), counts_sum_(first_norm_adds) {}

  void add(PaperTensor branch) {
    value();
    pending_ = std::move(branch);
  }
  const PaperTensor& value() {
    if (!pending_) return x_;
    if (of_ == Of::Layer) ops_->count(ops_->works(true).add(real(x_.rows), real(x_.columns)), false);
    x_ = ops_->sum(x_, *std::exchange(pending_, std::nullopt));
    return x_;
  }
  // Sets the pending branch's memory free, as the real one does, before the caller goes on.
  PaperRecomputable normed(bool trains, bool has_mean, bool recomputed) {
    PaperTensor result;
    PaperOps::Norm norm = {.trains = trains, .has_mean = has_mean, .recomputed = recomputed};
    if (pending_) {
      auto [sum, normed] = ops_->add_norm(x_, *pending_, norm);
      pending_.reset();
      x_ = std::move(sum);
      result = std::move(normed);
    } else {
      norm.counts_sum = counts_sum_;
      result = ops_->norm(x_, norm);
    }
    if (!recomputed) return result;
    return {result, [ops = ops_, x = x_.memory, rows = x_.rows, columns = x_.columns] {
              return ops->norm_again(rows, columns);
            }};
  }

 private:
  PaperOps* ops_;
  PaperTensor x_;
  Of of_;
  bool counts_sum_;
  std::optional<PaperTensor> pending_;
};

// nn/recompute.h: add_layer()
struct PaperRecomputation {
  bool recomputed = false, trains = true;
  bool first_norm_adds = false;  // in a layer that runs again
};
template <class Add>
void add_layer(PaperOps& ops, PaperResidual& stream, const Add& add, const PaperRecomputation& how) {
  ops.begin_layer();
  if (!how.recomputed) return add(stream);
  const auto layer = [&ops, add, how](const PaperOps::Tensors& in) -> PaperOps::Tensors {
    PaperResidual input(ops, in[0], PaperResidual::Of::Layer, how.first_norm_adds);
    add(input);
    return {input.value()};
  };
  stream = PaperResidual(ops, ops.recompute(layer, {PaperRecomputable(stream.value())}, how.trains)[0],
                         PaperResidual::Of::Stage, true);
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
    const std::int64_t own = x.value.rows;
    const bool in_one_piece = sequence_parallel_ && own > 0 && !weight.fp8;
    if (!in_one_piece && !is_cut(own)) return ops_.linear(gathered(x), weight);
    return ops_.gather_and_multiply(x, weight, tp_,
                                    {call("all_gather", own * tp_ * weight.in, std::min(pieces_, own))});
  }
  PaperTensor rows(const PaperRecomputable& x, PaperWeight weight) const {
    weight.in /= tp_;
    const std::int64_t own = x.value.rows / tp_;
    if (!is_cut(own)) return reduce_to_sequence(ops_.linear(x, weight), weight.ends_layer);
    return ops_.multiply_and_scatter(
        x, weight, tp_,
        {.call = call("reduce_scatter", x.value.rows * weight.out, std::min(pieces_, own)), .once = weight.ends_layer});
  }
  PaperTensor reduce_to_sequence(const PaperTensor& partial, bool ends_layer = false) const {
    if (tp_ == 1) return partial;
    return ops_.communicate(
        partial, sequence_parallel_ ? partial.rows / tp_ : partial.rows, partial.columns,
        {.call = call(sequence_parallel_ ? "reduce_scatter" : "all_reduce", partial.elements()), .once = ends_layer});
  }
  PaperRecomputable gathered(const PaperRecomputable& x) const {
    if (!sequence_parallel_) return x;
    const PaperTensor all =
        ops_.communicate(x.value, x.value.rows * tp_, x.value.columns, {call("all_gather", x.value.elements() * tp_)});
    if (!x.again) return all;
    return {all, [ops = &ops_, again = x.again, bytes = all.bytes()] {
              const PaperMemory own = again();
              return ops->make(bytes);
            }};
  }
  // It gathers rows of the transposed matrix.
  PaperTensor gather_features(const PaperTensor& x) const {
    if (tp_ == 1) return x;
    ops_.ledger().touch(x.bytes() * (tp_ + 1));
    return ops_.communicate(x, x.rows, x.columns * tp_, {call("all_gather", x.elements() * tp_)});
  }
  std::int64_t own_rows(std::int64_t rows) const { return tp_ == 1 || sequence_parallel_ ? rows : rows / tp_; }
  // At the end of a layer.
  PaperTensor all_rows(const PaperTensor& own) const {
    if (tp_ == 1 || sequence_parallel_) return own;
    return ops_.communicate(own, own.rows * tp_, own.columns,
                            {.call = call("all_gather", own.elements() * tp_), .once = true});
  }
  // From a rank's rows to all rows of its share of the columns, and back. Both copy rows around the all-to-all.
  PaperTensor sequence_to_heads(const PaperTensor& x, std::int64_t columns) const {
    if (cp_ == 1) return x;
    const PaperTensor by_rank = ops_.copy(x, x.rows, columns * cp_, around_exchange(x));
    return ops_.communicate(by_rank, x.rows * cp_, columns, {exchange(by_rank)});
  }
  PaperTensor heads_to_sequence(const PaperTensor& x) const {
    if (cp_ == 1) return x;
    const PaperTensor by_rank = ops_.communicate(x, x.rows, x.columns, {exchange(x)});
    return ops_.copy(by_rank, x.rows / cp_, x.columns * cp_, around_exchange(x));
  }

 private:
  bool is_cut(std::int64_t rows) const { return sequence_parallel_ && std::min(pieces_, rows) > 1; }
  Collective call(const char* operation, std::int64_t elements, std::int64_t pieces = 1) const {
    return {"tp", operation, elements * ops_.element(), pieces};
  }
  Collective exchange(const PaperTensor& x) const { return {"cp", "all_to_all", x.bytes()}; }
  OperatorWork around_exchange(const PaperTensor& x) const {
    return ops_.works(true).copied(Operator::Stream, 4 * real(x.elements()));
  }

  PaperOps& ops_;
  const std::int64_t tp_, cp_;
  const bool sequence_parallel_;
  const std::int64_t pieces_;
};

// ops/packed_sequences.cpp: the tables of a microbatch, in one tensor
inline std::int64_t table_bytes(const PaperSequences& sequences) {
  constexpr std::int64_t kScanChunk = 128, kInt = 4;
  return kInt * (4 * sequences.chunks_of(kScanChunk) + (sequences.count + 2) / 2 * 2 + 4 * sequences.tokens);
}

// Runs a stage's forward, and its backward if it has one. `forward`: () -> the output
template <class Forward>
StageMemory measured(PaperOps& ops, const Forward& forward) {
  const MemoryLedger& ledger = ops.ledger();
  StageMemory memory;
  PaperTensor output = forward();
  memory.output = output.bytes();
  memory.forward = ledger.peak();
  memory.saved = ledger.live();
  if (!output.trains()) return memory;
  ops.ledger().forget_peak();
  ops.pass(output, ops.make(output.bytes()));
  ops.backward(0);
  memory.backward = ledger.peak();
  return memory;
}

}  // namespace braid
