// A stage of an encoder, and its projector, on tensors without values.
#include <algorithm>
#include <utility>

#include "models/encoders.h"
#include "models/even_stages.h"
#include "models/paper_layers.h"
#include "plan/pipeline.h"

namespace braid {
namespace {

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
        trains_(trains),
        items_(rows_of_items(config, extents)) {
    sequences_.tokens = items_.hidden;
    sequences_.longest = items_.longest;
    sequences_.count = std::max<std::int64_t>(1, std::ssize(extents));
  }

  StageMemory stage(int stage, int stages) {
    const std::vector<int> bounds = even_stages(layers_.layers, stages);
    const auto begin = static_cast<std::size_t>(stage);
    const bool is_first = stage == 0, is_last = stage == stages - 1;
    const PaperMemory tables = ops_.tape().make(trains_.encoder ? table_bytes(sequences_) : 0);
    PaperTensor received = is_first ? PaperTensor() : ops_.matrix(items_.hidden, layers_.hidden);
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
    const PaperTensor values = ops_.matrix(items_.embedded, features);
    PaperTensor x = maps_.columns(values, weight(features, layers_.hidden));
    if (is_audio()) x = ops_.activation(x, x.columns);
    x = maps_.gather_features(x);
    x = ops_.copy(x, items_.hidden, layers_.hidden);
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
    if (!radio && sequences_.count == 1)
      x.rows = items_.embedded;  // a view
    else if (!radio || radio->class_tokens > 0)
      x = ops_.copy(x, items_.embedded, layers_.hidden);
    return config_.pixel_shuffle ? ops_.copy(x, items_.embedded / 4, 4 * x.columns) : x;
  }

  // models/projector.cpp
  PaperTensor projected(PaperTensor x) {
    const ProjectorConfig& c = config_.projector;
    x.rows = items_.embeddings;  // of audio, several rows become one
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
  const ItemRows items_;
  PaperSequences sequences_;
};

}  // namespace

StageMemory memory_of(const EncoderConfig& config, const Module& module, int stage, const LayerOptions& options,
                      const std::vector<std::vector<std::int64_t>>& extents, const EncoderTraining& trains) {
  return EncoderPaper(config, module, options, extents, trains).stage(stage, stage_count(module));
}

}  // namespace braid
