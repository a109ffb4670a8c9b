// One forward, and optionally backward, of a model on one batch in any layout, with full results on global rank 0.
// `braid forward` runs it, and it serves to compare layouts. All model families run the same way.
#pragma once

#include <ATen/core/Tensor.h>
#include "models/encoder.h"
#include "nn/config.h"
#include "nn/parameters.h"

namespace braid {

class Group;
class World;

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
using TakeTensor = std::function<void(const std::string& name, const at::Tensor& tensor)>;

struct ForwardOptions {
  at::ScalarType dtype = at::kFloat;
  bool grads = false;
  bool sequence_parallel = false;
  OverlapConfig overlap{};
  RecomputeConfig recompute{};
  double aux_loss_scale = 0;  // see SequenceBatch
  // Called on rank 0 with each gradient, one at a time, since all of them together may not fit in memory; empty: the
  // gradients are in the result.
  TakeTensor take_gradient{};
};

// Set on global rank 0; on other ranks everything is undefined or empty.
struct ForwardResult {
  at::Tensor output;   // logits [T, V] or features, e.g. [P, H]
  at::Tensor loss;     // in double, or undefined
  NamedTensors grads;  // gradients of the loss, by native name
};

using Fill = std::function<void(Parameters&)>;  // sets the values of a rank's shards

// Concatenated sequences. A label is the next token, or kIgnoredLabel if there is none; labels undefined: no loss.
struct TokenBatch {
  at::Tensor ids, labels;             // [T] int64, on the CPU
  std::vector<std::int64_t> offsets;  // of the sequences: 0 ... T
};

// The loss is the mean over counted labels. Sequences are assigned to the replicas in order. Token counts that do not
// split evenly over tp and cp are padded with an extra sequence, which affects neither the loss nor other tokens.
ForwardResult forward_language(const LanguageConfig& config, const Fill& fill, const TokenBatch& batch,
                               const ForwardOptions& options, const Topology& topology, World& world);

// Concatenated items of an encoder: images or clips.
struct ItemBatch {
  at::Tensor values;         // of patches or frames: [N, values of one]
  at::Tensor feature_grads;  // [rows of features, their width]; undefined: ones
  Extents items;
};

// If gradients are requested, the loss is the sum of features * feature_grads; otherwise there is no loss. Items are
// assigned to the replicas in order.
ForwardResult forward_encoder(const EncoderModel& config, const Fill& fill, const ItemBatch& batch,
                              const ForwardOptions& options, const Topology& topology, World& world);

// Passes every trainable parameter's gradient, summed over the ranks that hold it, to `take` on rank 0, in the order of
// `specs`. Collective over `everyone`.
void assemble_gradients(const std::vector<ParamSpec>& specs, const Parameters& parameters, const Module& module,
                        const Group& everyone, const at::TensorOptions& options, const TakeTensor& take);

}  // namespace braid
