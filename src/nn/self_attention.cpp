#include "nn/self_attention.h"

#include <cmath>

#include "ops/attention.h"
#include "ops/positions.h"

namespace braid {

at::Tensor attend(const at::Tensor& qkv, const AttentionShape& shape, bool causal, const PackedSequences& sequences,
                  const Parallel& parallel) {
  const std::int64_t queries = shape.heads / shape.kv_heads, width = shape.head_dim;
  at::Tensor groups = sequence_to_heads(qkv.unflatten(1, {-1, queries + 2, width}), parallel.cp);
  if (shape.rotary_theta > 0)  // of queries and keys
    groups = rotary_embedding(groups, sequences.position_of, shape.rotary_theta, queries + 1);
  const at::Tensor out = attention(groups, sequences, causal, 1 / std::sqrt(static_cast<double>(width)));
  return heads_to_sequence(out, parallel.cp).flatten(1, 2);
}

SelfAttention::SelfAttention(const AttentionShape& shape, double norm_eps, const Parameters& parameters,
                             const std::string& prefix, const Parallel& parallel, const RecomputeConfig& recompute)
    : shape_(shape),
      norm_eps_(norm_eps),
      recompute_(recompute),
      parallel_(parallel),
      norm_(parameters.get(prefix + "linear_qkv.layer_norm_weight")),
      qkv_(parameters, prefix + "linear_qkv.", Split::Columns, parallel),
      proj_(parameters, prefix + "linear_proj.", Split::Rows, parallel) {}

at::Tensor SelfAttention::branch(const Residual& x, const SequenceBatch& batch) {
  const at::Tensor qkv = qkv_(x.rms_norm(norm_, norm_eps_, recompute_.norms));
  return proj_(attend(qkv, shape_, true, batch.sequences, parallel_));
}

}  // namespace braid
