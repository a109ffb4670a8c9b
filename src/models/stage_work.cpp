#include "models/stage_work.h"

#include <algorithm>
#include <cmath>

#include "models/even_stages.h"
#include "plan/pipeline.h"

// Legend of sizes: T tokens inside tensor-parallel regions, t of the residual stream on a rank (fewer with sequence
// parallelism), R rows of experts, H hidden. Bytes count what a fused kernel reads and writes, in elements of `e`
// bytes.
namespace braid {
namespace {

Works operator+(Works a, const Works& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Works& operator+=(Works& a, const Works& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Of one operator or layer: what its backward computes again comes before that backward.
struct Pair {
  Works forward, backward;
};

Pair operator+(Pair a, const Pair& b) {
  a.forward += b.forward;
  a.backward = b.backward + a.backward;
  return a;
}

double real(std::int64_t value) { return static_cast<double>(value); }

enum class Fp8 { No, Yes };

// The operators of ops/ for elements of one size, if their parameters train or not.
class Operators {
 public:
  Operators(std::int64_t element_bytes, bool trains) : e_(real(element_bytes)), trains_(trains) {}

  double e() const { return e_; }

  Work product(double rows, double columns, double depth) const {
    return wide(Operator::Product, rows, columns, depth);
  }

  // ops/linear and ops/linear_fp8, without a bias. An input without a gradient: the first layer of a model.
  Pair linear(double rows, double out, double in, Fp8 fp8 = Fp8::No, bool x_grad = true) const {
    if (fp8 == Fp8::Yes) return linear_fp8(rows, out, in);
    Pair pair = {{product(rows, out, in)}, {}};
    if (x_grad) pair.backward.push_back(product(rows, in, out));
    if (trains_) pair.backward += weight_gradient(wide(Operator::ProductSum, out, in, rows), out * in);
    return pair;
  }

  // The bias is part of the product; its gradient is a sum over rows.
  Pair bias(double rows, double out) const { return {{}, trains_ ? stream(Operator::Stream, rows * out) : Works()}; }

  // ops/grouped_linear: `experts` experts of `rows` rows together
  Pair grouped(double rows, double experts, double out, double in, Fp8 fp8) const {
    const double each = rows / experts;
    const bool is_fp8 = fp8 == Fp8::Yes;
    const Operator forward = is_fp8 ? Operator::ExpertsFp8 : Operator::Experts,
                   sum = is_fp8 ? Operator::ExpertsFp8Sum : Operator::ExpertsSum;
    const auto of_all = [&](Work work) {
      work.amount *= experts;
      return work;
    };
    Pair pair = {{of_all(product_work(forward, each, out, in))}, {of_all(product_work(forward, each, in, out))}};
    Work gradient = product_work(sum, out, in, each);
    if (trains_) pair.backward += weight_gradient(of_all(gradient), experts * out * in);
    return pair;
  }

  // Both forms of a matrix, or its rows alone. Its columns are read once more after their scales are known.
  Works quantize(double elements, bool columns) const {
    return {stream_work(Operator::Quantize, elements * (columns ? 2 * e_ + 2 : e_ + 1), columns ? 3 : 1)};
  }

  // ops/add_norm: of a sum of two, which it also writes; ops/norm
  Pair add_norm(double rows, double width) const {
    return {stream(Operator::Norm, 4 * rows * width), stream(Operator::NormBackward, 4 * rows * width, 2)};
  }
  Pair norm(double rows, double width) const {
    return {stream(Operator::Norm, 2 * rows * width), stream(Operator::NormBackward, 3 * rows * width, 2)};
  }
  Pair add(double rows, double width) const { return {stream(Operator::Stream, 3 * rows * width), {}}; }

  Pair activation(double rows, double in, double out) const {
    return {stream(Operator::Activation, rows * (in + out)),
            stream(Operator::ActivationBackward, rows * (2 * in + out))};
  }

  Works stream(Operator op, double elements, double launches = 1) const {
    return {stream_work(op, elements * e_, launches)};
  }
  Pair copied(Operator op, double elements) const { return {stream(op, elements), stream(op, elements)}; }

  // ops/attention. Causal masking leaves half of the products; backward is counted as two forwards.
  Pair attention(double tokens, double heads, double width, double squares, bool causal) const {
    if (tokens <= 0) return {};
    const double amount = 2 * 2 * heads * width * squares * (causal ? 0.5 : 1);
    const std::array<double, 3> size = {tokens * heads, squares / tokens, width};
    return {{{.op = Operator::Attention, .amount = amount, .size = size}},
            {{.op = Operator::AttentionBackward, .amount = 2 * amount, .size = size, .launches = 3}}};
  }

 private:
  Work wide(Operator op, double rows, double columns, double depth) const {
    if (e_ <= 2) return product_work(op, rows, columns, depth);
    Work work = product_work(Operator::ProductWide, rows, columns, depth);
    work.amount *= e_ / 4;
    return work;
  }

  Pair linear_fp8(double rows, double out, double in) const {
    Pair pair = {quantize(rows * in, trains_) + Works{product_work(Operator::ProductFp8, rows, out, in)},
                 quantize(rows * out, trains_) + Works{product_work(Operator::ProductFp8, rows, in, out)}};
    if (trains_) pair.backward += weight_gradient(product_work(Operator::ProductFp8Sum, out, in, rows), out * in);
    return pair;
  }

  // A gradient that is added to the sum of others reads it, too, which the product does not hide.
  static Works weight_gradient(const Work& product, double elements) {
    Work added = stream_work(Operator::Stream, 2 * 4 * elements, 0);
    added.when = When::LaterMicrobatches;
    return {product, added};
  }

  const double e_;
  const bool trains_;
};

Works beside_experts(Works works) {
  for (Work& work : works) work.beside_experts = true;
  return works;
}

// A layer that backward runs again as a whole.
Pair recomputed(Pair layer) {
  layer.backward = layer.forward + layer.backward;
  return layer;
}

// An operator whose output is not kept: its only reader in backward computes it again.
Pair repeated_if(bool recomputed, Pair pair) {
  if (recomputed) pair.backward = pair.forward + pair.backward;
  return pair;
}

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
  Pair embedding(const Config& c) const {
    const double width = real(c.hidden);
    Pair pair = {ops_.stream(Operator::Rows, 2 * tokens_ * width), {}};
    if (!trains_) return pair;
    Work cleared = stream_work(Operator::Stream, 4 * real(c.vocab) / tp_ * width);
    cleared.when = When::FirstMicrobatch;
    pair.backward = {stream_work(Operator::Rows, tokens_ * width * (ops_.e() + 8), 3), cleared};
    return pair;
  }

  // The stream's sum, the final norm, select_rows(), logits() and vocab_parallel_cross_entropy()
  template <class Config>
  Pair loss(const Config& c) const {
    const double labels = real(text_.labels), width = real(c.hidden), vocab = real(c.vocab) / tp_;
    return (recompute_.full ? Pair() : ops_.add(own_, width)) + ops_.norm(own_, width) +
           Pair{ops_.stream(Operator::Rows, 2 * labels * width),
                ops_.stream(Operator::Rows, (labels + tokens_) * width)} +
           ops_.linear(labels, vocab, width) +
           Pair{ops_.stream(Operator::CrossEntropy, labels * vocab),
                ops_.stream(Operator::CrossEntropyBackward, 2 * labels * vocab)};
  }

  Pair layer(const HybridLmConfig& c, int layer) const {
    switch (layer_letters(c)[static_cast<std::size_t>(layer)]) {
      case 'M':
        return ended(c.hidden, mamba(c));
      case '*':
        return ended(c.hidden, attention(c, fp8_of(c)));
      case 'E':
        return ended(c.hidden, moe(c));
      default:
        return ended(c.hidden, mlp(c, fp8_of(c)));
    }
  }

  // models/llama.cpp: the attention's branch is added by the norm of the MLP
  Pair layer(const LlamaConfig& c, int) const {
    const double ffn = real(c.ffn) / tp_, width = real(c.hidden);
    const double heads = real(c.heads + 2 * c.kv_heads) / tp_;
    Pair attended = attention(c, Fp8::No);
    const Pair rotary = ops_.copied(Operator::Stream, 2 * tokens_ * heads * real(c.head_dim));
    const Pair mlp = normed(ops_.add_norm(own_, width)) + ops_.linear(tokens_, 2 * ffn, width) +
                     repeated_if(recompute_.activations, ops_.activation(tokens_, 2 * ffn, ffn)) +
                     ops_.linear(tokens_, width, ffn);
    return ended(c.hidden, attended + rotary + mlp);
  }

 private:
  static Fp8 fp8_of(const HybridLmConfig& c) { return c.fp8 == "rowwise" ? Fp8::Yes : Fp8::No; }

  // nn/residual: a layer's norm adds the branch of the layer before it. A layer that runs again has no branch before
  // it, and adds its own at its end.
  Pair first_norm(double width) const {
    return normed(recompute_.full ? ops_.norm(own_, width) : ops_.add_norm(own_, width));
  }
  Pair normed(Pair norm) const {
    if (recompute_.norms && trains_)
      norm.backward = ops_.stream(Operator::Norm, norm.forward[0].amount / ops_.e() / 2) + norm.backward;
    return norm;
  }
  Pair ended(std::int64_t width, const Pair& layer) const {
    return recompute_.full ? recomputed(layer + ops_.add(own_, real(width))) : layer;
  }

  // nn/mamba2.cpp and ops/mamba_mixer.cpp
  Pair mamba(const HybridLmConfig& c) const {
    const double heads = real(c.mamba_heads) / tp_, width = real(c.mamba_head_dim), state = real(c.mamba_state);
    const double inner = heads * width, states = real(c.mamba_groups) / tp_ * state, conv = inner + 2 * states;
    const double hidden = real(c.hidden);
    // Context parallelism exchanges tokens for heads: a rank scans all tokens of its heads.
    const double scanned = tokens_ * cp_, share = 1 / real(cp_);
    const double chunk = std::min(real(c.mamba_chunk), text_.squares > 0 ? text_.squares / real(text_.tokens) : 1e9);
    const double amount = 2 * scanned * share * ((states + inner) * chunk / 2 + 2 * inner * state);
    const std::array<double, 3> size = {scanned, heads * share, width * state};
    const Pair filter = {ops_.stream(Operator::Convolution, 2 * tokens_ * conv),
                         ops_.stream(Operator::ConvolutionBackward, 3 * tokens_ * conv, 2)};
    const Pair scan = {{{.op = Operator::Scan, .amount = amount, .size = size, .launches = 3}},
                       {{.op = Operator::ScanBackward, .amount = 2 * amount, .size = size, .launches = 5}}};
    const Pair gate = {ops_.stream(Operator::GatedNorm, 3 * tokens_ * inner),
                       ops_.stream(Operator::GatedNormBackward, 5 * tokens_ * inner, 2)};
    Pair mixer = swapped(conv + heads) + filter + scan + swapped(inner) + gate;
    if (recompute_.mamba)
      mixer = recomputed(mixer);
    else if (recompute_.norms)
      mixer.backward = gate.forward + mixer.backward;
    return first_norm(hidden) + ops_.linear(tokens_, inner + conv + heads, hidden, fp8_of(c)) + mixer +
           ops_.linear(tokens_, hidden, inner, fp8_of(c));
  }

  // The copies before and after an all-to-all of context parallelism.
  Pair swapped(double width) const { return cp_ > 1 ? ops_.copied(Operator::Stream, 4 * tokens_ * width) : Pair(); }

  // nn/self_attention.cpp
  template <class Config>
  Pair attention(const Config& c, Fp8 fp8) const {
    const double heads = real(c.heads) / tp_, kv_heads = real(c.kv_heads) / tp_, width = real(c.head_dim);
    const double hidden = real(c.hidden), columns = (heads + 2 * kv_heads) * width;
    return first_norm(hidden) + ops_.linear(tokens_, columns, hidden, fp8) + swapped(columns) +
           ops_.attention(tokens_ * cp_, heads / cp_, width, text_.squares, true) + swapped(heads * width) +
           ops_.linear(tokens_, hidden, heads * width, fp8);
  }

  // models/hybrid_lm.cpp: Mlp
  Pair mlp(const HybridLmConfig& c, Fp8 fp8) const {
    return first_norm(real(c.hidden)) + two_maps(tokens_, real(c.ffn) / tp_, real(c.hidden), fp8);
  }

  Pair two_maps(double rows, double ffn, double hidden, Fp8 fp8) const {
    const Pair relu = ops_.activation(rows, ffn, ffn);
    // In fp8 the second map keeps its input in fp8 and does not read it again.
    return ops_.linear(rows, ffn, hidden, fp8) + repeated_if(recompute_.activations && fp8 == Fp8::No, relu) +
           ops_.linear(rows, hidden, ffn, fp8);
  }

  // nn/moe.cpp
  Pair moe(const HybridLmConfig& c) const {
    const double hidden = real(c.hidden), tokens = tokens_ / tp_, experts = real(c.experts);
    const double shared = real(c.shared_ffn) / tp_;
    const double amount = 2 * tokens * hidden * experts;
    const std::array<double, 3> size = {tokens, hidden, experts};
    const Pair router = {{{.op = Operator::Router, .amount = amount, .size = size, .launches = 5}},
                         {{.op = Operator::RouterBackward, .amount = 2 * amount, .size = size, .launches = 4}}};
    Pair beside = c.shared_ffn > 0 ? two_maps(tokens_, shared, hidden, fp8_of(c)) : Pair();
    beside = {beside_experts(beside.forward), beside_experts(beside.backward)};
    const Pair aux = c.aux_loss_coeff != 0 ? Pair{{stream_work(Operator::Stream, 8 * tokens * experts, 4)},
                                                  {stream_work(Operator::Stream, 12 * tokens * experts, 3)}}
                                           : Pair();
    return first_norm(hidden) + router + beside + routed(c, tokens) + aux;
  }

  // The routed experts: permute_to_experts(), fc1, scaled_squared_relu(), fc2, unpermute_from_experts(). Routing is
  // assumed to be even.
  Pair routed(const HybridLmConfig& c, double tokens) const {
    const bool is_local = ep_ == 1 && expt_tp_ == 1;
    const Fp8 fp8 = fp8_of(c);
    if (fp8 == Fp8::Yes && is_local) return routed_fp8(c, tokens);
    const double hidden = real(c.hidden), ffn = real(c.expert_ffn) / expt_tp_, experts = real(c.experts) / ep_;
    const double sent = tokens * real(c.top_k), rows = sent * expt_tp_;
    const Pair permute = ops_.copied(Operator::Rows, (tokens + sent) * hidden);
    const Pair sorted = is_local ? Pair() : ops_.copied(Operator::Rows, 2 * rows * hidden);  // by expert, and back
    const Pair relu = repeated_if(recompute_.activations && fp8 == Fp8::No, ops_.activation(rows, ffn, ffn));
    const auto factor = [&](double width) {  // in fp8
      return fp8 == Fp8::Yes ? Pair{ops_.quantize(rows * width, trains_), {}} : Pair();
    };
    const auto gradient = [&](double width) {
      return fp8 == Fp8::Yes ? Pair{{}, ops_.quantize(rows * width, trains_)} : Pair();
    };
    Pair inner = permute + sorted + factor(hidden) + ops_.grouped(rows, experts, ffn, hidden, fp8) + gradient(ffn) +
                 relu + factor(ffn) + ops_.grouped(rows, experts, hidden, ffn, fp8) + gradient(hidden) + sorted;
    if (recompute_.experts) inner = recomputed(inner);
    const Pair unpermute = {ops_.stream(Operator::Rows, (sent + 2 * tokens) * hidden),
                            ops_.stream(Operator::Rows, (sent + tokens) * hidden)};
    return inner + unpermute;
  }

  // ops/expert_mlp_fp8.cpp: rows are permuted, and activated, as they are quantized.
  Pair routed_fp8(const HybridLmConfig& c, double tokens) const {
    const double hidden = real(c.hidden), ffn = real(c.expert_ffn), experts = real(c.experts);
    const double rows = tokens * real(c.top_k);
    const bool columns_now = trains_ && !recompute_.experts;
    const auto permuted = [&](bool columns) {
      return Works{stream_work(Operator::Quantize,
                               tokens * hidden * ops_.e() + rows * hidden * (columns ? ops_.e() + 2 : 1), 3)};
    };
    const Pair fc1 = ops_.grouped(rows, experts, ffn, hidden, Fp8::Yes),
               fc2 = ops_.grouped(rows, experts, hidden, ffn, Fp8::Yes);
    const auto activated = [&](bool columns) {
      return permuted(columns) + fc1.forward + ops_.quantize(rows * ffn, columns);
    };
    Pair pair = {activated(columns_now) + fc2.forward, {}};
    if (recompute_.experts) pair.backward = activated(trains_);
    pair.backward += permuted(trains_) + fc2.backward +
                     Works{stream_work(Operator::Quantize, rows * ffn * (4 * ops_.e() + 2), 3)} + fc1.backward +
                     ops_.stream(Operator::Rows, (rows + tokens) * hidden);
    pair.forward += ops_.stream(Operator::Rows, (rows + 2 * tokens) * hidden);
    return pair;
  }

  const int tp_, cp_, ep_, expt_tp_;
  const RecomputeConfig recompute_;
  const TextSizes text_;
  const double tokens_, own_;
  const Operators ops_;
  const bool trains_;
};

LayerWork layer_work(const Pair& pair, bool has_backward) {
  return {pair.forward, has_backward ? pair.backward : Works()};
}

template <class Config>
std::vector<LayerWork> language_stage(const Config& c, const Module& module, int stage, const LayerOptions& options,
                                      const TextSizes& text, bool trains) {
  const LanguageWork work(module, options, text, trains);
  const int stages = stage_count(module);
  const std::vector<int> bounds = stage_bounds(c, stages);
  const auto begin = static_cast<std::size_t>(stage);
  std::vector<LayerWork> layers;
  if (stage == 0) layers.push_back(layer_work(work.embedding(c), trains));
  for (int layer = bounds[begin]; layer < bounds[begin + 1]; ++layer)
    layers.push_back(layer_work(work.layer(c, layer), true));
  if (stage == stages - 1) layers.push_back(layer_work(work.loss(c), true));
  return layers;
}

struct ItemSizes {
  double embedded = 0, hidden = 0, embeddings = 0;
  double squares = 0;  // of the lengths of the sequences that attend
};

ItemSizes sizes_of_items(const EncoderConfig& config, const std::vector<std::vector<std::int64_t>>& extents) {
  ItemSizes sizes;
  for (const std::vector<std::int64_t>& extent : extents) {
    const double hidden = real(hidden_rows_of(config.model, extent));
    sizes.embedded += std::holds_alternative<AudioConfig>(config.model) ? hidden : real(extent.at(0) * extent.at(1));
    sizes.hidden += hidden;
    sizes.squares += hidden * hidden;
    sizes.embeddings += real(rows_of(config, extent));
  }
  return sizes;
}

class EncoderWork {
 public:
  EncoderWork(const EncoderConfig& config, const Module& module, const LayerOptions& options,
              const std::vector<std::vector<std::int64_t>>& extents, const EncoderTraining& trains)
      : config_(config),
        layers_(std::visit([](const auto& c) { return layers_of(c); }, config.model)),
        tp_(group_size(module, "tp")),
        recompute_(in_encoder(options.recompute)),
        items_(sizes_of_items(config, extents)),
        ops_(options.element_bytes, trains.encoder),
        projector_ops_(options.element_bytes, trains.projector),
        trains_(trains) {}

  int layers() const { return layers_.layers; }

  // Pixels become elements, then embeddings with positions.
  Pair embedding() const {
    const double features = real(features_of(config_.model)) * (is_audio() ? 2 : 1), hidden = real(layers_.hidden);
    return Pair{ops_.stream(Operator::Stream, 4 * items_.embedded * features, 4), {}} +
           ops_.linear(items_.embedded, hidden / tp_, features, Fp8::No, /*x_grad=*/false) +
           ops_.bias(items_.embedded, hidden / tp_) +
           Pair{ops_.stream(Operator::Stream, 3 * items_.hidden * hidden, 2),
                ops_.stream(Operator::Stream, 3 * items_.hidden * hidden, 3)};
  }

  // models/encoder_layers.cpp
  Pair layer() const {
    const double rows = items_.hidden, hidden = real(layers_.hidden), ffn = real(layers_.ffn) / tp_;
    const double own = hidden / tp_, heads = real(layers_.heads) / tp_;
    const bool is_fused = layers_.gelu == "tanh" && !recompute_.activations && ops_.e() <= 2;
    const Pair gelu = is_fused ? ops_.copied(Operator::Activation, rows * ffn)
                               : repeated_if(recompute_.activations, ops_.activation(rows, ffn, ffn));
    const Pair scale = layers_.layer_scale ? Pair{ops_.stream(Operator::Stream, 3 * rows * hidden, 2),
                                                  ops_.stream(Operator::Stream, 5 * rows * hidden, 4)}
                                           : Pair();
    const Pair branches = normed() + ops_.linear(rows, 3 * own, hidden) + bias_of(layers_.qkv_bias, rows, 3 * own) +
                          ops_.attention(rows, heads, hidden / real(layers_.heads), items_.squares, false) +
                          ops_.linear(rows, hidden, own) + scale + normed() + ops_.linear(rows, ffn, hidden) +
                          ops_.bias(rows, ffn) + gelu + ops_.linear(rows, hidden, ffn) + scale;
    return recompute_.full ? recomputed(branches + ops_.add(rows, hidden)) : branches;
  }

  // The stream's sum, the final norm, the rows of patches, pixel_shuffle()
  Pair features() const {
    const double elements = items_.hidden * real(layers_.hidden);
    const auto* radio = std::get_if<RadioConfig>(&config_.model);
    const bool has_norm = is_audio() || (radio && radio->final_norm);
    const bool has_shuffle = !is_audio() && config_.pixel_shuffle;
    return (recompute_.full ? Pair() : ops_.add(items_.hidden, real(layers_.hidden))) +
           (has_norm ? ops_.norm(items_.hidden, real(layers_.hidden)) : Pair()) +
           (is_audio() ? Pair() : ops_.copied(Operator::Stream, 2 * elements)) +
           (has_shuffle ? ops_.copied(Operator::Stream, 2 * elements) : Pair());
  }

  // models/projector.cpp. Without a gradient of its input if only the projector trains.
  Pair projector() const {
    const ProjectorConfig& c = config_.projector;
    const double rows = items_.embeddings, in = real(c.input), out = real(c.output);
    if (c.kind == "affine")
      return projector_ops_.linear(rows, out / tp_, in, Fp8::No, trains_.encoder) +
             projector_ops_.bias(rows, out / tp_);
    const double hidden = real(c.hidden) / tp_;
    return projector_ops_.linear(rows, hidden, in, Fp8::No, trains_.encoder) +
           projector_ops_.activation(rows, hidden, hidden) + projector_ops_.linear(rows, out, hidden);
  }

  const EncoderTraining& trains() const { return trains_; }

 private:
  bool is_audio() const { return std::holds_alternative<AudioConfig>(config_.model); }
  Pair bias_of(bool has_bias, double rows, double out) const { return has_bias ? ops_.bias(rows, out) : Pair(); }
  Pair normed() const {
    Pair norm = ops_.add_norm(items_.hidden, real(layers_.hidden));
    if (recompute_.norms) norm.backward = ops_.norm(items_.hidden, real(layers_.hidden)).forward + norm.backward;
    return norm;
  }

  const EncoderConfig& config_;
  const EncoderLayersConfig layers_;
  const int tp_;
  const RecomputeConfig recompute_;
  const ItemSizes items_;
  const Operators ops_, projector_ops_;
  const EncoderTraining trains_;
};

}  // namespace

const std::vector<std::string>& operator_names() {
  static const std::vector<std::string> names = {"product",
                                                 "product_sum",
                                                 "product_wide",
                                                 "product_fp8",
                                                 "product_fp8_sum",
                                                 "experts",
                                                 "experts_sum",
                                                 "experts_fp8",
                                                 "experts_fp8_sum",
                                                 "attention",
                                                 "attention_backward",
                                                 "scan",
                                                 "scan_backward",
                                                 "router",
                                                 "router_backward",
                                                 "stream",
                                                 "norm",
                                                 "norm_backward",
                                                 "gated_norm",
                                                 "gated_norm_backward",
                                                 "convolution",
                                                 "convolution_backward",
                                                 "activation",
                                                 "activation_backward",
                                                 "rows",
                                                 "cross_entropy",
                                                 "cross_entropy_backward",
                                                 "quantize",
                                                 "update"};
  return names;
}

Work product_work(Operator op, double rows, double columns, double depth) {
  return {.op = op, .amount = 2 * rows * columns * depth, .size = {rows, columns, depth}};
}

Work stream_work(Operator op, double bytes, double launches) {
  return {.op = op, .amount = bytes, .size = {bytes, 1, 1}, .launches = launches};
}

Works in_microbatch(const Works& works, bool is_first) {
  Works kept;
  for (const Work& work : works)
    if (work.when == When::Always || (work.when == When::FirstMicrobatch) == is_first) kept.push_back(work);
  for (Work& work : kept) work.when = When::Always;
  return kept;
}

std::vector<LayerWork> work_of(const LanguageConfig& config, const Module& module, int stage,
                               const LayerOptions& options, const TextSizes& text, bool trains) {
  return std::visit([&](const auto& c) { return language_stage(c, module, stage, options, text, trains); }, config);
}

std::vector<LayerWork> work_of(const EncoderConfig& config, const Module& module, int stage,
                               const LayerOptions& options, const std::vector<std::vector<std::int64_t>>& extents,
                               const EncoderTraining& trains) {
  const EncoderWork work(config, module, options, extents, trains);
  const int stages = stage_count(module);
  const std::vector<int> bounds = even_stages(work.layers(), stages);
  const auto at = static_cast<std::size_t>(stage);
  std::vector<LayerWork> layers;
  if (stage == 0) layers.push_back(layer_work(work.embedding(), trains.encoder));
  for (int layer = bounds[at]; layer < bounds[at + 1]; ++layer)
    layers.push_back(layer_work(work.layer(), trains.encoder));
  if (stage < stages - 1) return layers;
  layers.push_back(layer_work(work.features(), trains.encoder));
  layers.push_back(layer_work(work.projector(), trains.encoder || trains.projector));
  return layers;
}

// optim/sharded_adam: the norm reads the gradient; the update reads gradient, main copy and moments, and writes all but
// the gradient, and the parameter.
Works update_work(const UpdateSizes& sizes, const LayerOptions& options) {
  const double e = real(options.element_bytes), wide = std::max(e, 4.0);
  Works works;
  if (sizes.updated > 0) works.push_back(stream_work(Operator::Update, sizes.updated * (8 * wide + e), 3));
  if (sizes.fp8 > 0) works.push_back(stream_work(Operator::Quantize, sizes.fp8 * (2 * e + 2), 3));
  return works;
}

}  // namespace braid
