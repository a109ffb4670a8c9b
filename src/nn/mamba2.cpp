#include "nn/mamba2.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include "ops/mamba_mixer.h"
#include "ops/norm.h"

namespace braid {
namespace {

// This cp rank's slice of each block along dimension 0 of a tp rank's parameter.
at::Tensor share_of_blocks(const at::Tensor& parameter, const std::vector<std::int64_t>& blocks, const Group& cp) {
  if (cp.size() == 1 || !parameter.defined()) return parameter;
  std::vector<at::Tensor> shares;
  for (const at::Tensor& block : parameter.split_with_sizes(blocks, 0))
    shares.push_back(block.chunk(cp.size(), 0)[static_cast<std::size_t>(cp.rank())]);
  return at::cat(shares, 0);
}

// The same for features; each rank exchanges its share of the sequence for its share of the features of all tokens.
at::Tensor exchange_blocks(const at::Tensor& x, const std::vector<std::int64_t>& blocks, const Group& cp) {
  if (cp.size() == 1) return x;
  std::vector<at::Tensor> by_rank;  // [t, cp, block / cp] each
  for (const at::Tensor& block : x.split_with_sizes(blocks, 1))
    by_rank.push_back(block.unflatten(1, {cp.size(), block.size(1) / cp.size()}));
  return sequence_to_heads(at::cat(by_rank, 2), cp).squeeze(1);
}

}  // namespace

Mamba2::Mamba2(const Mamba2Shape& shape, const SsdOptions& scan, double norm_eps, const Parameters& parameters,
               const std::string& prefix, const Parallel& parallel, const RecomputeConfig& recompute)
    : shape_{shape.heads / parallel.tp.size(), shape.head_dim, shape.groups / parallel.tp.size(), shape.state},
      scan_(scan),
      norm_eps_(norm_eps),
      recompute_(recompute),
      parallel_(parallel),
      pre_norm_(parameters.get(prefix + "in_proj.layer_norm_weight")),
      in_proj_(parameters, prefix + "in_proj.", Split::Columns, parallel),
      conv_weight_(parameters.get(prefix + "conv1d.weight")),
      conv_bias_(parameters.get_if_declared(prefix + "conv1d.bias")),
      A_log_(parameters.get(prefix + "A_log")),
      D_(parameters.get(prefix + "D")),
      dt_bias_(parameters.get(prefix + "dt_bias")),
      gate_norm_(parameters.get(prefix + "norm.weight")),
      out_proj_(parameters, prefix + "out_proj.", Split::Rows, parallel) {}

at::Tensor Mamba2::branch(const Residual& x, const SequenceBatch& batch) {
  return out_proj_(mix(in_proj_(x.rms_norm(pre_norm_, norm_eps_, recompute_.norms)), batch.sequences));
}

Recomputable Mamba2::mix(const at::Tensor& projected, const PackedSequences& sequences) const {
  const Group& cp = parallel_.cp;
  const std::int64_t inner = std::int64_t{shape_.heads} * shape_.head_dim;
  const std::int64_t states = std::int64_t{shape_.groups} * shape_.state;
  const at::Tensor features = exchange_blocks(projected, {inner, inner, states, states, shape_.heads}, cp);
  const std::vector<std::int64_t> conv_blocks = {inner, states, states}, per_head = {shape_.heads};
  const MambaParameters parameters = {.conv_weight = share_of_blocks(conv_weight_, conv_blocks, cp).squeeze(1),
                                      .conv_bias = share_of_blocks(conv_bias_, conv_blocks, cp),
                                      .A_log = share_of_blocks(A_log_, per_head, cp),
                                      .D = share_of_blocks(D_, per_head, cp),
                                      .dt_bias = share_of_blocks(dt_bias_, per_head, cp),
                                      .norm_weight = share_of_blocks(gate_norm_, {inner}, cp)};
  const MambaOptions options = {.groups = shape_.groups / cp.size(), .scan = scan_, .norm_eps = norm_eps_};
  const MixerRecompute again = recompute_.mamba   ? MixerRecompute::All
                               : recompute_.norms ? MixerRecompute::Output
                                                  : MixerRecompute::None;
  return mamba_mixer(features, parameters, options, sequences, again).then([cp](const at::Tensor& normed) {
    return heads_to_sequence(normed.unsqueeze(1), cp).flatten(1, 2);
  });
}

}  // namespace braid
