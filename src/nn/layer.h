#pragma once

#include <memory>

#include "nn/residual.h"
#include "ops/packed_sequences.h"
#include "tensor/result.h"

namespace braid {

struct ExpertCounts;

// What a layer needs to know about the tokens of a replica's microbatch.
struct SequenceBatch {
  PackedSequences sequences;  // of all T tokens
  std::int64_t samples = 1;   // the T tokens are this many samples of equal length; each may hold several sequences
  double aux_loss_scale = 0;  // weight of auxiliary losses relative to the summed token losses; 0: none
  std::shared_ptr<ExpertCounts> expert_counts{};  // of a layer that runs again in backward: what its first run learnt
  Result output = Result::Needed;                 // of such a layer: not in its second run
};

// One residual branch, its norm included: the model adds its output to the stream x.   [t, H] -> [t, H]
class Layer {
 public:
  virtual ~Layer() = default;
  virtual at::Tensor branch(const Residual& x, const SequenceBatch& batch) = 0;
};

}  // namespace braid
