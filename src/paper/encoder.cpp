// A stage of an encoder, and its projector, on paper.

#include "models/configs.h"
#include "models/providers.h"
#include "paper/layers.h"
#include "plan/pipeline.h"

namespace braid {
namespace {

class EncoderWalk {
 public:
  EncoderWalk(const EncoderConfig& config, const Module& module, const LayerOptions& options,
              const std::vector<std::vector<std::int64_t>>& extents, const EncoderTraining& trains)
      : config_(config), layers_(std::visit([](const auto& c) { return layers_of(c); }, config.model)), ops_(options),
        maps_(ops_, group_size(module, "tp"), group_size(module, "cp"), false, 1), tp_(group_size(module, "tp")),
        recompute_(in_encoder(options.recompute)), trains_(trains), items_(rows_of_items(config, extents)) {
    sequences_.tokens = items_.hidden;
    sequences_.longest = items_.longest;
    sequences_.count = std::max<std::int64_t>(1, std::ssize(extents));
    sequences_.squares = items_.squares;
  }

  StageOnPaper stage(int stage, int stages) {
    const std::vector<int> bounds = even_stages(layers_.layers, stages);
    const bool is_first = stage == 0, is_last = stage == stages - 1;
    const PaperMemory tables = ops_.make(trains_.encoder ? table_bytes(sequences_) : 0);
    PaperTensor received = is_first ? PaperTensor() : ops_.matrix(items_.hidden, layers_.hidden);
    if (!is_first && trains_.encoder) received.gradient = std::make_shared<PaperMemory>();
    StageMemory memory = measured(ops_, [&] {
      PaperTensor x;
      {
        const auto mode = ops_.recording(trains_.encoder);
        PaperResidual stream(ops_, is_first ? embedded() : received, PaperResidual::Of::Stage, true);
        for (int layer = bounds[stage]; layer < bounds[stage + 1]; ++layer)
          add_layer(ops_, stream, [this](PaperResidual& to) { add(to); },
                    {.recomputed = recompute_.full, .trains = trains_.encoder, .first_norm_adds = true});
        x = stream.value();
        if (is_last) x = features(std::move(x));
      }
      return is_last ? projected(x) : x;
    });
    memory.input = received.bytes();
    return {ops_.layers(), memory};
  }

 private:
  bool is_audio() const { return std::holds_alternative<AudioConfig>(config_.model); }
  PaperWeight weight(std::int64_t in, std::int64_t out, bool has_bias = false) const {
    return {.in = in, .out = out, .trains = trains_.encoder, .has_bias = has_bias};
  }
  Works stream(double elements, double launches) const {
    return ops_.works(trains_.encoder).stream(Operator::Stream, elements, launches);
  }

  // Of images: patches, to which positions are added, behind class tokens. Of audio: pairs of frames, with a bias and
  // an activation before the positions. Pixels become elements first.
  PaperTensor embedded() {
    static_assert(kEncoderKinds == 3, "RADIO, CLIP and audio, here and in features()");
    ops_.begin_layer();
    const std::int64_t features = features_of(config_.model) * (is_audio() ? 2 : 1);
    const PaperTensor values = ops_.matrix(items_.embedded, features);
    ops_.count({stream(4 * real(values.elements()), 4)}, false);
    PaperTensor x = maps_.columns(values, weight(features, layers_.hidden, is_audio()));
    if (is_audio()) x = ops_.activation(x, x.columns);
    x = maps_.gather_features(x);
    const double elements = real(items_.hidden) * real(layers_.hidden);
    x = ops_.copy(x, items_.hidden, layers_.hidden, {stream(3 * elements, 2), stream(3 * elements, 3)});
    return std::holds_alternative<ClipConfig>(config_.model) ? final_norm(x) : x;
  }
  PaperTensor final_norm(const PaperTensor& x) { return ops_.norm(x, {.trains = trains_.encoder, .has_mean = true}); }

  // models/encoder.cpp. The gradient of a layer scale needs the output of the MLP.
  void add(PaperResidual& stream) {
    const std::int64_t hidden = layers_.hidden, heads = layers_.heads / tp_, width = hidden / layers_.heads;
    const auto normed = [&] { return stream.normed(trains_.encoder, true, recompute_.norms); };
    {
      const PaperTensor attended = [&] {
        const PaperTensor qkv = maps_.columns(normed(), weight(hidden, 3 * hidden, layers_.qkv_bias));
        return ops_.attention(qkv, {heads, 1, width, false}, sequences_);
      }();
      stream.add(scaled(maps_.rows(attended, weight(hidden, hidden))));
    }
    const PaperTensor inner = maps_.columns(normed(), weight(hidden, layers_.ffn, /*has_bias=*/true));
    PaperWeight fc2 = weight(layers_.ffn, hidden);
    fc2.ends_layer = !layers_.layer_scale;
    stream.add(scaled(layers_.gelu == GeluForm::Quick ? quick_mlp(inner, fc2) : gelu_mlp(inner, fc2)));
  }
  PaperTensor scaled(PaperTensor branch) {
    if (!layers_.layer_scale) return branch;
    const double elements = real(branch.elements());
    ops_.count({stream(3 * elements, 2), stream(5 * elements, 4)}, branch.trains());
    return ops_.scaled_by_channel(ops_.sum(branch, PaperTensor()), trains_.encoder);
  }
  PaperTensor quick_mlp(const PaperTensor& inner, const PaperWeight& fc2) {
    const PaperTensor value = ops_.activation(inner, inner.columns, recompute_.activations);
    return maps_.rows(ops_.recomputable(value, recompute_.activations, inner.memory), fc2);
  }
  PaperTensor gelu_mlp(const PaperTensor& inner, PaperWeight fc2) {
    const PaperTensor value = ops_.matrix(inner.rows, inner.columns);
    const Operators works = ops_.works(trains_.encoder);
    const double rows = real(inner.rows), ffn = real(inner.columns);
    const PaperRecomputable activated = ops_.recomputable(value, recompute_.activations, inner.memory);
    const bool is_fused = layers_.gelu == GeluForm::Tanh && !recompute_.activations && ops_.element() <= 2;
    const OperatorWork gelu = is_fused ? works.copied(Operator::Activation, rows * ffn)
                                       : repeated_if(recompute_.activations, works.activation(rows, ffn, ffn));
    fc2.in /= tp_;
    return maps_.reduce_to_sequence(ops_.linear_of_gelu(inner, activated, gelu, fc2), fc2.ends_layer);
  }
  // Without class tokens, 2 x 2 patches as one row.
  PaperTensor features(PaperTensor x) {
    ops_.begin_layer();
    const Operators works = ops_.works(trains_.encoder);
    const OperatorWork copied = works.copied(Operator::Stream, 2 * real(items_.hidden) * real(layers_.hidden));
    if (!recompute_.full) ops_.count(works.add(real(x.rows), real(x.columns)), false);
    const auto* radio = std::get_if<RadioConfig>(&config_.model);
    if (is_audio() || (radio && radio->final_norm)) x = final_norm(x);
    if (is_audio()) return x;
    ops_.count(copied, x.trains());
    if (!radio && sequences_.count == 1)
      x.rows = items_.embedded;  // a view
    else if (!radio || radio->class_tokens > 0)
      x = ops_.copy(x, items_.embedded, layers_.hidden);
    return config_.pixel_shuffle ? ops_.copy(x, items_.embedded / 4, 4 * x.columns, copied) : x;
  }

  // models/encoder.cpp: Projector
  PaperTensor projected(PaperTensor x) {
    ops_.begin_layer();
    const ProjectorConfig& c = config_.projector;
    x.rows = items_.embeddings;  // of audio, several rows become one
    x.columns = c.input;
    const bool is_affine = c.kind == ProjectorKind::Affine;
    const auto map = [&](std::int64_t in, std::int64_t out) {
      return PaperWeight{.in = in, .out = out, .trains = trains_.projector, .has_bias = is_affine};
    };
    if (is_affine) return maps_.gather_features(maps_.columns(x, map(c.input, c.output)));
    const PaperTensor inner = maps_.columns(x, map(c.input, c.hidden));
    return maps_.rows(ops_.activation(inner, inner.columns), map(c.hidden, c.output));
  }

  const EncoderConfig& config_;
  const EncoderLayersConfig layers_;
  PaperMixers ops_;
  const PaperMaps maps_;
  const std::int64_t tp_;
  const RecomputeConfig recompute_;
  const EncoderTraining trains_;
  const ItemRows items_;
  PaperSequences sequences_;
};

}  // namespace

StageOnPaper walk_stage(const EncoderConfig& config, const Module& module, int stage, const LayerOptions& options,
                        const std::vector<std::vector<std::int64_t>>& extents, const EncoderTraining& trains) {
  return EncoderWalk(config, module, options, extents, trains).stage(stage, stage_count(module));
}

}  // namespace braid
