// What encoders share: the transformer layers of one pipeline stage, and the projector, on this rank's share of the
// grid. Every tp rank holds all tokens (no sequence parallelism here).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/encoder_configs.h"
#include "nn/config.h"
#include "nn/linear.h"
#include "nn/parallel.h"
#include "nn/parameters.h"
#include "ops/packed_sequences.h"

namespace braid {

class EncoderLayers {
 public:
  // `parameters` and `parallel` must outlive the layers.
  EncoderLayers(const EncoderLayersConfig& config, const Parameters& parameters, const Parallel& parallel, int stage,
                int pp, const RecomputeConfig& recompute);
  ~EncoderLayers();

  at::Tensor run(at::Tensor x, const PackedSequences& sequences) const;  // [T, H] -> [T, H]

 private:
  class TransformerLayer;

  const Parameters& parameters_;
  const RecomputeConfig recompute_;
  std::vector<std::pair<std::string, std::unique_ptr<TransformerLayer>>>
      layers_;  // with the prefix of their parameters
};

// layer_norm with the weight and bias of that name, once they have arrived; see add_layer_norm().
at::Tensor named_layer_norm(const at::Tensor& x, const Parameters& parameters, const std::string& name, double eps);

// Maps an encoder's features to embeddings of the language model's width.
class Projector {
 public:
  // `parameters` and `parallel` must outlive the projector; every tp rank holds all tokens (no sequence parallelism).
  Projector(const ProjectorConfig& config, const Parameters& parameters, const Parallel& parallel);

  at::Tensor forward(const at::Tensor& x) const;  // [N, input] -> [N, output]

 private:
  const Parameters& parameters_;
  const Parallel& parallel_;
  const Linear first_;
  std::optional<Linear> second_;  // of an MLP
};

}  // namespace braid
