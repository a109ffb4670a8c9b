// What a pipeline stage communicates in one forward and one backward, on paper. The source file has one list for each
// kind of layer, whose lines name the calls of the layer's code. Calls on groups of one rank and on empty tensors are
// in the lists, too. No libtorch here.
//
// Of a mixture of experts, only the sum over the ranks that share the experts (ep x expt_tp) is exact: how many rows a
// rank receives, and therefore sends back, depends on the routing. A rank is counted as if it received as many rows as
// it sends. Everything else is exact on each rank.
#pragma once

#include "models/providers.h"
#include "nn/config.h"
#include "plan/collective.h"

namespace braid {

struct LayerCollectives {
  Collectives forward, backward;

  bool operator==(const LayerCollectives&) const = default;
};

struct LayerOptions {
  std::int64_t element_bytes = 2;  // of parameters and activations
  bool sequence_parallel = false;  // of the language model
  RecomputeConfig recompute{};
  OverlapConfig overlap{};
  bool on_gpu = true;         // whose kernels keep other tensors than operators on a CPU do
  bool deterministic = true;  // attention's backward on a GPU
};

// A replica's microbatch of text.
struct TextSizes {
  std::int64_t tokens = 0;
  std::int64_t samples = 1;
  std::int64_t labels = 0;      // with a loss, among the T / cp tokens of one rank
  double squares = 0;           // sum of the squares of the sequences' lengths
  std::int64_t embeddings = 0;  // rows that encoders produce
};

// By layer; what comes before the first layer and after the last one is like a layer. Of the stage of a module that
// trains, or that only passes gradients on to the encoders. Without what the modules exchange.
std::vector<LayerCollectives> collectives_of(const LanguageConfig& config, const Module& module, int stage,
                                             const LayerOptions& options, const TextSizes& text, bool trains);

// Of the stage of an encoder and, on its last stage, of its projector. `extents`: of the replica's items. The projector
// has a backward if either of the two trains.
struct EncoderTraining {
  bool encoder = true, projector = true;
};
std::vector<LayerCollectives> collectives_of(const EncoderConfig& config, const Module& module, int stage,
                                             const LayerOptions& options,
                                             const std::vector<std::vector<std::int64_t>>& extents,
                                             const EncoderTraining& trains);

// What the stages of a language model that are on one rank communicate after the optimizer's step, if they train.
Collectives update_collectives(const LanguageConfig& config, const Module& module, const std::vector<int>& stages,
                               const LayerOptions& options);

}  // namespace braid
