#include "models/audio_encoder.h"

#include <ATen/TensorOperators.h>

#include "base/error.h"
#include "nn/linear.h"
#include "ops/activation.h"
#include "ops/positions.h"

namespace braid {

AudioEncoder::AudioEncoder(const AudioConfig& config, const Parameters& parameters, const Parallel& parallel, int stage,
                           int pp, const RecomputeConfig& recompute)
    : config_(config),
      parameters_(parameters),
      parallel_(parallel),
      stage_(stage),
      pp_(pp),
      layers_(layers_of(config), parameters, parallel, stage, pp, recompute) {
  if (is_first_stage()) embedder_.emplace(parameters, "embedder.", Split::Columns, parallel);
}

PackedSequences AudioEncoder::sequences_of(const Lengths& lengths, const at::Device& device) const {
  const std::int64_t multiple = config_.frames_per_token();
  std::vector<std::int64_t> offsets = {0};
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 0 || lengths[i] % multiple != 0)
      throw DataError(fmt::format("clip {} of {} has {} frames, not a multiple of the {} per token: pad it, e.g. to {}",
                                  i, lengths.size(), lengths[i], multiple, (lengths[i] / multiple + 1) * multiple));
    offsets.push_back(offsets.back() + lengths[i] / 2);
  }
  return pack_sequences(std::move(offsets), device);
}

at::Tensor AudioEncoder::embed(const at::Tensor& frames, const Lengths& lengths) const {
  const PackedSequences sequences = sequences_of(lengths, frames.device());
  BRAID_CHECK_EQ(frames.size(0), 2 * sequences.tokens(), "frames of {} clips", lengths.size());
  parameters_.await("embedder.");
  const Linear& embedder = embedder_.value();
  const at::Tensor pairs = frames.to(embedder.dtype()).reshape({sequences.tokens(), 2 * std::int64_t{config_.mels}});
  return gather_features(gelu(embedder(pairs), GeluForm::Erf), parallel_) +
         sinusoids(sequences.position_of, config_.hidden, embedder.dtype());
}

at::Tensor AudioEncoder::run_layers(at::Tensor x, const Lengths& lengths) const {
  const PackedSequences sequences = sequences_of(lengths, x.device());
  return layers_.run(std::move(x), sequences);
}

at::Tensor AudioEncoder::features(const at::Tensor& x, const Lengths& lengths) const {
  BRAID_CHECK_EQ(x.size(0), sequences_of(lengths, at::kCPU).tokens(), "encoded frames of {} clips", lengths.size());
  return named_layer_norm(x, parameters_, "decoder.final_layernorm", config_.norm_eps)
      .reshape({x.size(0) / config_.stack, config_.feature_width()});
}

}  // namespace braid
