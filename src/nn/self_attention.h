#pragma once

#include "nn/config.h"
#include "nn/layer.h"
#include "nn/linear.h"

namespace braid {

struct AttentionShape {
  int heads = 1, kv_heads = 1, head_dim = 1;
  double rotary_theta = 0;  // of the rotary embedding, see ops/packed_sequences.h; 0: none
};

// Attention on the output of a fused projection, whose features are, per key/value head: its query heads, the key, the
// value. Heads are split over tp; context parallelism splits them further during the attention. Positions count from
// the start of each sequence.
// qkv: [T / cp, kv_heads / tp * (heads / kv_heads + 2) * head_dim] -> [T / cp, heads / tp * head_dim]
at::Tensor attend(const at::Tensor& qkv, const AttentionShape& shape, bool causal, const PackedSequences& sequences,
                  const Parallel& parallel);

// Causal grouped-query attention without biases.
class SelfAttention : public Layer {
 public:
  SelfAttention(const AttentionShape& shape, double norm_eps, const Parameters& parameters, const std::string& prefix,
                const Parallel& parallel, const RecomputeConfig& recompute = {});
  at::Tensor branch(const Residual& x, const SequenceBatch& batch) override;

 private:
  const AttentionShape shape_;
  const double norm_eps_;
  const RecomputeConfig recompute_;
  const Parallel& parallel_;
  const at::Tensor norm_;
  const Linear qkv_, proj_;
};

}  // namespace braid
