#pragma once

#include "nn/config.h"
#include "nn/layer.h"
#include "nn/linear.h"
#include "ops/ssd_scan.h"

namespace braid {

struct Mamba2Shape {
  int heads = 1, head_dim = 1, groups = 1, state = 1;
};

// Mamba2: in_proj produces z | x | B | C | dt; a causal convolution over x | B | C; the scan; the gated norm; out_proj.
// Heads and groups are split over tp. Context parallelism splits them further for the convolution and the scan, where
// each rank processes all tokens with its share of the heads; ranks that outnumber the groups share them.
class Mamba2 : public Layer {
 public:
  Mamba2(const Mamba2Shape& shape, const SsdOptions& scan, double norm_eps, const Parameters& parameters,
         const std::string& prefix, const Parallel& parallel, const RecomputeConfig& recompute = {});
  at::Tensor branch(const Residual& x, const SequenceBatch& batch) override;

 private:
  Recomputable mix(const at::Tensor& projected, const PackedSequences& sequences) const;
  // With context parallelism.   projected: [t, z | x | B | C | dt] -> [t, d]
  Recomputable mix_shares(const at::Tensor& projected, const PackedSequences& sequences) const;
  // Of this rank's heads, for all tokens.   features: [t, x | B | C | dt] -> [T, heads, head_dim]
  at::Tensor scan_share(const at::Tensor& features, const PackedSequences& sequences) const;

  const Mamba2Shape shape_;  // of this tp rank: its share of heads and groups
  const SsdOptions scan_;
  const double norm_eps_;
  const RecomputeConfig recompute_;
  const Parallel& parallel_;
  const at::Tensor pre_norm_;
  const Linear in_proj_;
  const at::Tensor conv_weight_, conv_bias_, A_log_, D_, dt_bias_, gate_norm_;
  const Linear out_proj_;
};

}  // namespace braid
