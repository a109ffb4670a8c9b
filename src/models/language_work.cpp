// The operators of a stage of a language model: a list for each kind of layer.
#include <algorithm>
#include <map>

#include "models/operator_work.h"
#include "plan/pipeline.h"

namespace braid {
namespace {

class LanguageWork {
 public:
  LanguageWork(const Module& module, const LayerOptions& options, const TextSizes& text, bool trains)
      : tp_(group_size(module, "tp")),
        cp_(group_size(module, "cp")),
        ep_(group_size(module, "ep")),
        expt_tp_(group_size(module, "expt_tp")),
        recompute_(in_language(options.recompute)),
        text_(text),
        tokens_(real(text.tokens) / cp_),
        own_(tokens_ / (options.sequence_parallel ? tp_ : 1)),
        ops_(options.element_bytes, trains),
        trains_(trains) {}

  // nn/linear.h: embed(). The first gradient clears the whole sum.
  template <class Config>
  OperatorWork embedding(const Config& c) const {
    const double width = real(c.hidden);
    OperatorWork pair = {ops_.stream(Operator::Rows, 2 * tokens_ * width), {}};
    if (!trains_) return pair;
    Work cleared = stream_work(Operator::Stream, 4 * real(c.vocab) / tp_ * width);
    cleared.when = When::FirstMicrobatch;
    pair.backward = {stream_work(Operator::Rows, tokens_ * width * (ops_.e() + 8), 3), cleared};
    return pair;
  }

  // The stream's sum, the final norm, select_rows(), logits() and vocab_parallel_cross_entropy()
  template <class Config>
  OperatorWork loss(const Config& c) const {
    const double labels = real(text_.labels), width = real(c.hidden), vocab = real(c.vocab) / tp_;
    return (recompute_.full ? OperatorWork() : ops_.add(own_, width)) + ops_.norm(own_, width) +
           OperatorWork{ops_.stream(Operator::Rows, 2 * labels * width),
                        ops_.stream(Operator::Rows, (labels + tokens_) * width)} +
           ops_.linear(labels, vocab, width) +
           OperatorWork{ops_.stream(Operator::CrossEntropy, labels * vocab),
                        ops_.stream(Operator::CrossEntropyBackward, 2 * labels * vocab)};
  }

  OperatorWork layer(const HybridLmConfig& c, char kind) const {
    switch (kind) {
      case 'M':
        return ended(c.hidden, mamba(c));
      case '*':
        return ended(c.hidden, attention(c, fp8_of(c), /*ends_layer=*/true));
      case 'E':
        return ended(c.hidden, moe(c));
      default:
        return ended(c.hidden, mlp(c, fp8_of(c)));
    }
  }

  // models/llama.cpp: the attention's branch is added by the norm of the MLP
  OperatorWork layer(const LlamaConfig& c, char) const {
    const double ffn = real(c.ffn) / tp_, width = real(c.hidden);
    const double heads = real(c.heads + 2 * c.kv_heads) / tp_;
    const OperatorWork attended = attention(c, Fp8::No, /*ends_layer=*/false);
    const OperatorWork rotary = ops_.copied(Operator::Stream, 2 * tokens_ * heads * real(c.head_dim));
    const OperatorWork mlp = normed(ops_.add_norm(own_, width)) + ops_.linear(tokens_, 2 * ffn, width) +
                             repeated_if(recompute_.activations, ops_.activation(tokens_, 2 * ffn, ffn)) +
                             closing(ops_.linear(tokens_, width, ffn));
    return ended(c.hidden, attended + rotary + mlp);
  }

 private:
  static Fp8 fp8_of(const HybridLmConfig& c) { return c.fp8 == Fp8Mode::Rowwise ? Fp8::Yes : Fp8::No; }

  // nn/layer.h: a layer's norm adds the branch of the layer before it. A layer that runs again has no branch before
  // it, and adds its own at its end.
  OperatorWork first_norm(double width) const {
    return normed(recompute_.full ? ops_.norm(own_, width) : ops_.add_norm(own_, width));
  }
  OperatorWork normed(OperatorWork norm) const {
    if (recompute_.norms && trains_)
      norm.backward = ops_.stream(Operator::Norm, norm.forward[0].amount / ops_.e() / 2) + norm.backward;
    return norm;
  }
  OperatorWork ended(std::int64_t width, const OperatorWork& layer) const {
    return recompute_.full ? recomputed(layer + ops_.add(own_, real(width))) : layer;
  }

  // nn/mamba2.cpp and ops/mamba_mixer.cpp
  OperatorWork mamba(const HybridLmConfig& c) const {
    const double heads = real(c.mamba_heads) / tp_, width = real(c.mamba_head_dim), state = real(c.mamba_state);
    const double inner = heads * width, states = real(c.mamba_groups) / tp_ * state, conv = inner + 2 * states;
    const double hidden = real(c.hidden);
    // Context parallelism exchanges tokens for heads: a rank scans all tokens of its heads.
    const double scanned = tokens_ * cp_, share = 1 / real(cp_);
    const double chunk = std::min(real(c.mamba_chunk), text_.squares > 0 ? text_.squares / real(text_.tokens) : 1e9);
    const double amount = 2 * scanned * share * ((states + inner) * chunk / 2 + 2 * inner * state);
    const std::array<double, 3> size = {scanned, heads * share, width * state};
    const OperatorWork filter = {ops_.stream(Operator::Convolution, 2 * tokens_ * conv),
                                 ops_.stream(Operator::ConvolutionBackward, 3 * tokens_ * conv, 2)};
    const OperatorWork scan = {{{.op = Operator::Scan, .amount = amount, .size = size, .launches = 3}},
                               {{.op = Operator::ScanBackward, .amount = 2 * amount, .size = size, .launches = 5}}};
    // The convolution's weight and bias, A_log, D, dt_bias, and the norm's weight have small gradients.
    const OperatorWork gate = {
        ops_.stream(Operator::GatedNorm, 3 * tokens_ * inner),
        ops_.small_gradients(6, inner) + ops_.stream(Operator::GatedNormBackward, 5 * tokens_ * inner, 2)};
    OperatorWork mixer = swapped(conv + heads) + filter + scan + swapped(inner) + gate;
    if (recompute_.mamba)
      mixer = recomputed(mixer);
    else if (recompute_.norms)
      mixer.backward = gate.forward + mixer.backward;
    return first_norm(hidden) + ops_.linear(tokens_, inner + conv + heads, hidden, fp8_of(c)) + mixer +
           closing(ops_.linear(tokens_, hidden, inner, fp8_of(c)));
  }

  // The copies before and after an all-to-all of context parallelism.
  OperatorWork swapped(double width) const {
    return cp_ > 1 ? ops_.copied(Operator::Stream, 4 * tokens_ * width) : OperatorWork();
  }

  // nn/self_attention.cpp
  template <class Config>
  OperatorWork attention(const Config& c, Fp8 fp8, bool ends_layer) const {
    const double heads = real(c.heads) / tp_, kv_heads = real(c.kv_heads) / tp_, width = real(c.head_dim);
    const double hidden = real(c.hidden), columns = (heads + 2 * kv_heads) * width;
    const OperatorWork projection = ops_.linear(tokens_, hidden, heads * width, fp8);
    return first_norm(hidden) + ops_.linear(tokens_, columns, hidden, fp8) + swapped(columns) +
           ops_.attention(tokens_ * cp_, heads / cp_, width, text_.squares, true) + swapped(heads * width) +
           (ends_layer ? closing(projection) : projection);
  }

  // models/hybrid_lm.cpp: Mlp
  OperatorWork mlp(const HybridLmConfig& c, Fp8 fp8) const {
    return first_norm(real(c.hidden)) + two_maps(tokens_, real(c.ffn) / tp_, real(c.hidden), fp8);
  }

  OperatorWork two_maps(double rows, double ffn, double hidden, Fp8 fp8) const {
    const OperatorWork relu = ops_.activation(rows, ffn, ffn);
    // In fp8 the second map keeps its input in fp8 and does not read it again.
    return ops_.linear(rows, ffn, hidden, fp8) + repeated_if(recompute_.activations && fp8 == Fp8::No, relu) +
           closing(ops_.linear(rows, hidden, ffn, fp8));
  }

  // nn/moe.cpp
  OperatorWork moe(const HybridLmConfig& c) const {
    const double hidden = real(c.hidden), tokens = tokens_ / tp_, experts = real(c.experts);
    const double shared = real(c.shared_ffn) / tp_;
    const double amount = 2 * tokens * hidden * experts;
    const std::array<double, 3> size = {tokens, hidden, experts};
    const OperatorWork router = {{{.op = Operator::Router, .amount = amount, .size = size, .launches = 5}},
                                 {{.op = Operator::RouterBackward, .amount = 2 * amount, .size = size, .launches = 4}}};
    OperatorWork beside = c.shared_ffn > 0 ? two_maps(tokens_, shared, hidden, fp8_of(c)) : OperatorWork();
    for (Works* works : {&beside.forward, &beside.backward, &beside.again}) *works = beside_experts(*works);
    const OperatorWork aux = c.aux_loss_coeff != 0
                                 ? OperatorWork{{stream_work(Operator::Stream, 8 * tokens * experts, 4)},
                                                {stream_work(Operator::Stream, 12 * tokens * experts, 3)}}
                                 : OperatorWork();
    return first_norm(hidden) + router + beside + routed(c, tokens) + aux;
  }

  // The routed experts: permute_to_experts(), fc1, scaled_squared_relu(), fc2, unpermute_from_experts(). Routing is
  // assumed to be even.
  OperatorWork routed(const HybridLmConfig& c, double tokens) const {
    const bool is_local = ep_ == 1 && expt_tp_ == 1;
    const Fp8 fp8 = fp8_of(c);
    if (fp8 == Fp8::Yes && is_local) return routed_fp8(c, tokens);
    const double hidden = real(c.hidden), ffn = real(c.expert_ffn) / expt_tp_, experts = real(c.experts) / ep_;
    const double sent = tokens * real(c.top_k), rows = sent * expt_tp_;
    const OperatorWork permute = ops_.copied(Operator::Rows, (tokens + sent) * hidden);
    const OperatorWork sorted =
        is_local ? OperatorWork() : ops_.copied(Operator::Rows, 2 * rows * hidden);  // by expert, and back
    const OperatorWork relu = repeated_if(recompute_.activations && fp8 == Fp8::No, ops_.activation(rows, ffn, ffn));
    const auto factor = [&](double width) {  // in fp8
      return fp8 == Fp8::Yes ? OperatorWork{ops_.quantize(rows * width, trains_), {}} : OperatorWork();
    };
    const auto gradient = [&](double width) {
      return fp8 == Fp8::Yes ? OperatorWork{{}, ops_.quantize(rows * width, trains_)} : OperatorWork();
    };
    OperatorWork inner = permute + sorted + factor(hidden) + ops_.grouped(rows, experts, ffn, hidden, fp8) +
                         gradient(ffn) + relu + factor(ffn) + closing(ops_.grouped(rows, experts, hidden, ffn, fp8)) +
                         gradient(hidden) + sorted;
    if (recompute_.experts) inner = recomputed(inner);
    const OperatorWork unpermute = {ops_.stream(Operator::Rows, (sent + 2 * tokens) * hidden),
                                    ops_.stream(Operator::Rows, (sent + tokens) * hidden)};
    return inner + unpermute;
  }

  // ops/experts_fp8.cpp: rows are permuted, and activated, as they are quantized.
  OperatorWork routed_fp8(const HybridLmConfig& c, double tokens) const {
    const double hidden = real(c.hidden), ffn = real(c.expert_ffn), experts = real(c.experts);
    const double rows = tokens * real(c.top_k);
    const bool columns_now = trains_ && !recompute_.experts;
    const double e = ops_.e();
    const auto permuted = [&](bool columns) {
      return Works{stream_work(Operator::QuantizeRows, tokens * hidden * e + rows * hidden * (columns ? e + 2 : 1), 3)};
    };
    const OperatorWork fc1 = ops_.grouped(rows, experts, ffn, hidden, Fp8::Yes),
                       fc2 = ops_.grouped(rows, experts, hidden, ffn, Fp8::Yes);
    const auto activated = [&](bool columns) {
      return permuted(columns) + fc1.forward +
             Works{stream_work(Operator::QuantizeActivation, rows * ffn * (columns ? 2 * e + 2 : e + 1), 3)};
    };
    OperatorWork pair(activated(columns_now), {});  // a second run needs no more
    pair.forward += fc2.forward;
    if (recompute_.experts) pair.backward = activated(trains_);
    pair.backward += permuted(trains_) + fc2.backward +
                     Works{stream_work(Operator::QuantizeActivationBackward, rows * ffn * (4 * e + 2), 3)} +
                     fc1.backward + ops_.stream(Operator::Rows, (rows + tokens) * hidden);
    pair.forward += ops_.stream(Operator::Rows, (rows + 2 * tokens) * hidden);
    return pair;
  }

  const int tp_, cp_, ep_, expt_tp_;
  const RecomputeConfig recompute_;
  const TextSizes text_;
  const double tokens_;  // inside tensor-parallel regions
  const double own_;     // of the residual stream on a rank: fewer with sequence parallelism
  const Operators ops_;
  const bool trains_;
};

// A letter for each layer. Those with the same letter do the same.
std::string layer_kinds(const HybridLmConfig& c) { return layer_letters(c); }
std::string layer_kinds(const LlamaConfig& c) { return std::string(static_cast<std::size_t>(c.layers), 'L'); }

template <class Config>
std::vector<LayerWork> language_stage(const Config& c, const Module& module, int stage, const LayerOptions& options,
                                      const TextSizes& text, bool trains) {
  const LanguageWork work(module, options, text, trains);
  const int stages = stage_count(module);
  const std::vector<int> bounds = stage_bounds(c, stages);
  const auto begin = static_cast<std::size_t>(stage);
  std::vector<LayerWork> layers;
  if (stage == 0) layers.push_back(layer_work(work.embedding(c), trains));
  const std::string kinds = layer_kinds(c);
  std::map<char, LayerWork> by_kind;
  for (int layer = bounds[begin]; layer < bounds[begin + 1]; ++layer) {
    const auto [found, is_new] = by_kind.try_emplace(kinds[static_cast<std::size_t>(layer)]);
    if (is_new) found->second = layer_work(work.layer(c, found->first), true);
    layers.push_back(found->second);
  }
  if (stage == stages - 1) layers.push_back(layer_work(work.loss(c), true));
  return layers;
}

}  // namespace

std::vector<LayerWork> work_of(const LanguageConfig& config, const Module& module, int stage,
                               const LayerOptions& options, const TextSizes& text, bool trains) {
  return std::visit([&](const auto& c) { return language_stage(c, module, stage, options, text, trains); }, config);
}

}  // namespace braid
