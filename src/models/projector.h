// Maps an encoder's features to embeddings of the language model's width.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "models/projector_config.h"
#include "nn/linear.h"
#include "nn/parallel.h"
#include "nn/parameters.h"

namespace braid {

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
