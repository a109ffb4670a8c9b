// The operators of a stage of an encoder and of its projector.
#include "models/encoders.h"
#include "models/even_stages.h"
#include "models/operator_work.h"
#include "plan/pipeline.h"

namespace braid {
namespace {

class EncoderWork {
 public:
  EncoderWork(const EncoderConfig& config, const Module& module, const LayerOptions& options,
              const std::vector<std::vector<std::int64_t>>& extents, const EncoderTraining& trains)
      : config_(config),
        layers_(std::visit([](const auto& c) { return layers_of(c); }, config.model)),
        tp_(group_size(module, "tp")),
        recompute_(in_encoder(options.recompute)),
        items_(rows_of_items(config, extents)),
        ops_(options.element_bytes, trains.encoder),
        projector_ops_(options.element_bytes, trains.projector),
        trains_(trains) {}

  int layers() const { return layers_.layers; }

  // Pixels become elements, then embeddings with positions. Only audio has a bias, and an activation before the
  // positions. CLIP has a norm behind them.
  OperatorWork embedding() const {
    const double features = real(features_of(config_.model)) * (is_audio() ? 2 : 1), hidden = real(layers_.hidden);
    const double embedded = real(items_.embedded), rows = real(items_.hidden), own = hidden / tp_;
    const bool has_norm = std::holds_alternative<ClipConfig>(config_.model);
    return OperatorWork{ops_.stream(Operator::Stream, 4 * embedded * features, 4), {}} +
           ops_.linear(embedded, own, features, Fp8::No, /*x_grad=*/false) +
           (is_audio() ? ops_.bias(embedded, own) + ops_.activation(embedded, own, own) : OperatorWork()) +
           OperatorWork{ops_.stream(Operator::Stream, 3 * rows * hidden, 2),
                        ops_.stream(Operator::Stream, 3 * rows * hidden, 3)} +
           (has_norm ? ops_.norm(rows, hidden) : OperatorWork());
  }

  // models/encoder_layers.cpp
  OperatorWork layer() const {
    const double rows = real(items_.hidden), hidden = real(layers_.hidden), ffn = real(layers_.ffn) / tp_;
    const double own = hidden / tp_, heads = real(layers_.heads) / tp_;
    const bool is_fused = layers_.gelu == "tanh" && !recompute_.activations && ops_.e() <= 2;
    const OperatorWork gelu = is_fused ? ops_.copied(Operator::Activation, rows * ffn)
                                       : repeated_if(recompute_.activations, ops_.activation(rows, ffn, ffn));
    const OperatorWork scale = layers_.layer_scale ? OperatorWork{ops_.stream(Operator::Stream, 3 * rows * hidden, 2),
                                                                  ops_.stream(Operator::Stream, 5 * rows * hidden, 4)}
                                                   : OperatorWork();
    const OperatorWork output = ops_.linear(rows, hidden, ffn);
    const OperatorWork branches =
        normed() + ops_.linear(rows, 3 * own, hidden) + bias_of(layers_.qkv_bias, rows, 3 * own) +
        ops_.attention(rows, heads, hidden / real(layers_.heads), items_.squares, false) +
        ops_.linear(rows, hidden, own) + scale + normed() + ops_.linear(rows, ffn, hidden) + ops_.bias(rows, ffn) +
        gelu + (layers_.layer_scale ? output : closing(output)) + scale;
    return recompute_.full ? recomputed(branches + ops_.add(rows, hidden)) : branches;
  }

  // The stream's sum, the final norm, the rows of patches, pixel_shuffle()
  OperatorWork features() const {
    const double rows = real(items_.hidden), hidden = real(layers_.hidden), elements = rows * hidden;
    const auto* radio = std::get_if<RadioConfig>(&config_.model);
    const bool has_norm = is_audio() || (radio && radio->final_norm);
    const bool has_shuffle = !is_audio() && config_.pixel_shuffle;
    return (recompute_.full ? OperatorWork() : ops_.add(rows, hidden)) +
           (has_norm ? ops_.norm(rows, hidden) : OperatorWork()) +
           (is_audio() ? OperatorWork() : ops_.copied(Operator::Stream, 2 * elements)) +
           (has_shuffle ? ops_.copied(Operator::Stream, 2 * elements) : OperatorWork());
  }

  // models/projector.cpp. Without a gradient of its input if only the projector trains.
  OperatorWork projector() const {
    const ProjectorConfig& c = config_.projector;
    const double rows = real(items_.embeddings), in = real(c.input), out = real(c.output);
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
  OperatorWork bias_of(bool has_bias, double rows, double out) const {
    return has_bias ? ops_.bias(rows, out) : OperatorWork();
  }
  OperatorWork normed() const {
    const double rows = real(items_.hidden), hidden = real(layers_.hidden);
    OperatorWork norm = ops_.add_norm(rows, hidden);
    if (recompute_.norms) norm.backward = ops_.norm(rows, hidden).forward + norm.backward;
    return norm;
  }

  const EncoderConfig& config_;
  const EncoderLayersConfig layers_;
  const int tp_;
  const RecomputeConfig recompute_;
  const ItemRows items_;
  const Operators ops_, projector_ops_;
  const EncoderTraining trains_;
};

}  // namespace

std::vector<LayerWork> work_of(const EncoderConfig& config, const Module& module, int stage,
                               const LayerOptions& options, const std::vector<std::vector<std::int64_t>>& extents,
                               const EncoderTraining& trains) {
  const EncoderWork work(config, module, options, extents, trains);
  const int stages = stage_count(module);
  const std::vector<int> bounds = even_stages(work.layers(), stages);
  const auto at = static_cast<std::size_t>(stage);
  std::vector<LayerWork> layers;
  if (stage == 0) layers.push_back(layer_work(work.embedding(), trains.encoder));
  layers.insert(layers.end(), static_cast<std::size_t>(bounds[at + 1] - bounds[at]),
                layer_work(work.layer(), trains.encoder));
  if (stage < stages - 1) return layers;
  layers.push_back(layer_work(work.features(), trains.encoder));
  layers.push_back(layer_work(work.projector(), trains.encoder || trains.projector));
  return layers;
}

}  // namespace braid
