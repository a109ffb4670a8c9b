#include "nn/self_attention.h"
#include <ATen/ops/cat.h>
#include "base/error.h"
#include "ops/attention.h"

namespace braid {
namespace {

// At least one group of heads for each of `ranks` ranks. Ranks that outnumber the groups share them: each has a part of
// a group's queries, and its keys and values.   groups: [t, kv heads, queries + 2, width]
at::Tensor groups_for(int ranks, const at::Tensor& groups) {
  const std::int64_t kv_heads = groups.size(1), queries = groups.size(2) - 2;
  if (kv_heads % ranks == 0) return groups;
  const std::int64_t sharing = ranks / kv_heads;
  BRAID_CHECK(ranks % kv_heads == 0 && queries % sharing == 0, "{} ranks share {} kv heads of {} queries", ranks,
              kv_heads, queries);
  const at::Tensor parts = groups.narrow(2, 0, queries).unflatten(2, {sharing, queries / sharing});
  const at::Tensor keys_and_values = groups.narrow(2, queries, 2).unsqueeze(2).expand({-1, -1, sharing, -1, -1});
  return at::cat({parts, keys_and_values}, 3).flatten(1, 2);
}

}  // namespace

at::Tensor attend(const at::Tensor& qkv, const AttentionShape& shape, bool causal, const PackedSequences& sequences,
                  const Parallel& parallel) {
  const std::int64_t queries = shape.heads / shape.kv_heads, width = shape.head_dim;
  const at::Tensor own = groups_for(parallel.cp.size(), qkv.unflatten(1, {-1, queries + 2, width}));
  at::Tensor groups = sequence_to_heads(own, parallel.cp);
  if (shape.rotary_theta > 0)  // of queries and keys, not of values
    groups = rotary_embedding(groups, sequences.position_of, shape.rotary_theta, groups.size(2) - 1);
  const at::Tensor out = attention(groups, sequences, causal, 1 / std::sqrt(static_cast<double>(width)));
  return heads_to_sequence(out, parallel.cp).flatten(1, 2);
}

SelfAttention::SelfAttention(const AttentionShape& shape, double norm_eps, const Parameters& parameters,
                             const std::string& prefix, const Parallel& parallel, const RecomputeConfig& recompute)
    : shape_(shape), norm_eps_(norm_eps), recompute_(recompute), parallel_(parallel),
      norm_(parameters.get(prefix + "linear_qkv.layer_norm_weight")),
      qkv_(parameters, prefix + "linear_qkv.", Split::Columns, parallel),
      proj_(parameters, prefix + "linear_proj.", Split::Rows, parallel) {}

at::Tensor SelfAttention::branch(const Residual& x, const SequenceBatch& batch) {
  const at::Tensor qkv = qkv_(x.rms_norm(norm_, norm_eps_, recompute_.norms));
  return proj_.branch(attend(qkv, shape_, true, batch.sequences, parallel_), batch.output).value();
}

}  // namespace braid
