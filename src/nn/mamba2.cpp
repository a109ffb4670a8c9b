#include "nn/mamba2.h"
#include <ATen/ops/cat.h>
#include "base/error.h"
#include "base/ranges.h"
#include "ops/mamba.h"

namespace braid {
namespace {

// Features of some heads or groups. Ranks that outnumber these share them.
struct Block {
  std::int64_t features, parts;
};

std::vector<std::int64_t> sizes_of(const std::vector<Block>& blocks) {
  return vector_of<std::int64_t>(blocks, &Block::features);
}

std::int64_t ranks_per_part(const Block& block, const Group& cp) {
  if (block.parts % cp.size() == 0) return 1;
  BRAID_CHECK_EQ(cp.size() % block.parts, 0, "{} heads or groups for {} ranks", block.parts, cp.size());
  return cp.size() / block.parts;
}

// This cp rank's slice of each block along dimension 0 of a tp rank's parameter.
at::Tensor share_of_blocks(const at::Tensor& parameter, const std::vector<Block>& blocks, const Group& cp) {
  if (!parameter.defined()) return parameter;
  std::vector<at::Tensor> shares;
  const std::vector<at::Tensor> all = parameter.split_with_sizes(sizes_of(blocks), 0);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::int64_t sharing = ranks_per_part(blocks[i], cp);
    shares.push_back(all[i].chunk(cp.size() / sharing, 0)[cp.rank() / sharing]);
  }
  return at::cat(shares, 0);
}

// The same for features; each rank exchanges its share of the sequence for its share of the features of all tokens.
at::Tensor exchange_blocks(const at::Tensor& x, const std::vector<Block>& blocks, const Group& cp) {
  std::vector<at::Tensor> by_rank;  // [t, cp, features of a rank] each
  const std::vector<at::Tensor> all = x.split_with_sizes(sizes_of(blocks), 1);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::int64_t sharing = ranks_per_part(blocks[i], cp);
    const at::Tensor parts = all[i].unflatten(1, {cp.size() / sharing, 1, -1});
    by_rank.push_back(parts.expand({-1, -1, sharing, -1}).flatten(1, 2));
  }
  return sequence_to_heads(at::cat(by_rank, 2), cp).squeeze(1);
}

}  // namespace

Mamba2::Mamba2(const Mamba2Shape& shape, const SsdOptions& scan, double norm_eps, const Parameters& parameters,
               const std::string& prefix, const Parallel& parallel, const RecomputeConfig& recompute)
    : shape_{shape.heads / parallel.tp.size(), shape.head_dim, shape.groups / parallel.tp.size(), shape.state},
      scan_(scan), norm_eps_(norm_eps), recompute_(recompute), parallel_(parallel),
      pre_norm_(parameters.get(prefix + "in_proj.layer_norm_weight")),
      in_proj_(parameters, prefix + "in_proj.", Split::Columns, parallel),
      conv_weight_(parameters.get(prefix + "conv1d.weight")),
      conv_bias_(parameters.get_if_declared(prefix + "conv1d.bias")), A_log_(parameters.get(prefix + "A_log")),
      D_(parameters.get(prefix + "D")), dt_bias_(parameters.get(prefix + "dt_bias")),
      gate_norm_(parameters.get(prefix + "norm.weight")),
      out_proj_(parameters, prefix + "out_proj.", Split::Rows, parallel) {}

at::Tensor Mamba2::branch(const Residual& x, const SequenceBatch& batch) {
  const at::Tensor projected = in_proj_(x.rms_norm(pre_norm_, norm_eps_, recompute_.norms));
  return out_proj_.branch(mix(projected, batch.sequences), batch.output).value();
}

Recomputable Mamba2::mix(const at::Tensor& projected, const PackedSequences& sequences) const {
  if (parallel_.cp.size() > 1) return mix_shares(projected, sequences);
  const MambaParameters parameters = {.conv_weight = conv_weight_.squeeze(1),
                                      .conv_bias = conv_bias_,
                                      .A_log = A_log_,
                                      .D = D_,
                                      .dt_bias = dt_bias_,
                                      .norm_weight = gate_norm_};
  const MambaOptions options = {.groups = shape_.groups, .scan = scan_, .norm_eps = norm_eps_};
  const MixerRecompute again = recompute_.mamba   ? MixerRecompute::All
                               : recompute_.norms ? MixerRecompute::Output
                                                  : MixerRecompute::None;
  return mamba_mixer(projected, parameters, options, sequences, again);
}

// The gate stays with its tokens, so the norm needs no heads of other ranks.
Recomputable Mamba2::mix_shares(const at::Tensor& projected, const PackedSequences& sequences) const {
  const std::int64_t inner = std::int64_t{shape_.heads} * shape_.head_dim;
  const std::vector<at::Tensor> parts = projected.split_with_sizes({inner, projected.size(1) - inner}, 1);
  const auto scan = [this, sequences](const Tensors& in, Result) { return Tensors{scan_share(in[0], sequences)}; };
  const at::Tensor share =
      recompute_.mamba ? recompute(scan, {parts[1]}, conv_weight_.requires_grad())[0] : scan_share(parts[1], sequences);
  const at::Tensor y = heads_to_sequence(share, parallel_.cp).flatten(1, 2);
  const auto normed = [this, y, z = parts[0]] { return gated_rms_norm(y, z, gate_norm_, shape_.groups, norm_eps_); };
  return recomputable(normed, recompute_.norms);
}

at::Tensor Mamba2::scan_share(const at::Tensor& features, const PackedSequences& sequences) const {
  const Group& cp = parallel_.cp;
  const std::int64_t width = shape_.head_dim, state = shape_.state;
  const Block x = {shape_.heads * width, shape_.heads}, b_or_c = {shape_.groups * state, shape_.groups},
              dt = {shape_.heads, shape_.heads};
  const at::Tensor own = exchange_blocks(features, {x, b_or_c, b_or_c, dt}, cp);
  const std::int64_t heads = shape_.heads / cp.size(), states = (own.size(1) - heads * (width + 1)) / 2;
  const std::vector<at::Tensor> xbc_dt = own.split_with_sizes({heads * width + 2 * states, heads}, 1);
  const std::vector<Block> conv_blocks = {x, b_or_c, b_or_c};
  const at::Tensor convolved = causal_conv_silu(xbc_dt[0], share_of_blocks(conv_weight_, conv_blocks, cp).squeeze(1),
                                                share_of_blocks(conv_bias_, conv_blocks, cp), sequences);
  const std::vector<at::Tensor> x_b_c = convolved.split_with_sizes({heads * width, states, states}, 1);
  return ssd_scan({.x = x_b_c[0].unflatten(1, {heads, width}),
                   .dt = xbc_dt[1],
                   .A_log = share_of_blocks(A_log_, {dt}, cp),
                   .B = x_b_c[1].unflatten(1, {-1, state}),
                   .C = x_b_c[2].unflatten(1, {-1, state}),
                   .D = share_of_blocks(D_, {dt}, cp),
                   .dt_bias = share_of_blocks(dt_bias_, {dt}, cp)},
                  scan_, sequences);
}

}  // namespace braid
