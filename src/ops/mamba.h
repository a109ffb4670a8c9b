// What Mamba2 does between its projections.
#pragma once

#include "ops/ssd_scan.h"
#include "tensor/autograd.h"

namespace braid {

// silu(bias + depthwise causal convolution): y[t, c] = silu(bias[c] + sum_j weight[c, j] * x[t - (K-1) + j, c]), where
// inputs before the start of a token's sequence are zero. Saves only its inputs.
// x: [T, C], weight: [C, K], bias: [C] or undefined
at::Tensor causal_conv_silu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            const PackedSequences& sequences);
at::Tensor causal_conv_silu_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                    const PackedSequences& sequences);
// Writes the gradient of x into x_grad, which may be columns of a wider tensor. Returns the gradients of weight and
// bias; the latter is undefined if there is no bias.
Tensors causal_conv_silu_backward_into(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                                       const at::Tensor& bias, const PackedSequences& sequences,
                                       const at::Tensor& x_grad);

// h heads of width p, d = h p; g groups with states of size n.
struct MambaParameters {
  at::Tensor conv_weight, conv_bias;  // [d + 2 g n, K], [d + 2 g n] or undefined
  at::Tensor A_log, D, dt_bias;       // [h]
  at::Tensor norm_weight;             // [d]
};

struct MambaOptions {
  std::int64_t groups = 1;
  SsdOptions scan;
  double norm_eps = 1e-5;
};

// What backward computes again instead of keeping it.
enum class MixerRecompute {
  None,
  Output,  // from what the mixer saves
  All,     // the output and what the mixer saves besides its inputs, in one second forward
};

// What Mamba2 does between its projections: causal_conv_silu over x | B | C, ssd_scan, gated_rms_norm. The features are
// read where they are, and backward writes all their gradients into one tensor. Saves its inputs, the outputs of the
// convolution and of the scan, the scan's states and the norm's statistics.
// features: [T, z | x | B | C | dt] = [T, 2 d + 2 g n + h] -> [T, d]
Recomputable mamba_mixer(const at::Tensor& features, const MambaParameters& parameters, const MambaOptions& options,
                         const PackedSequences& sequences, MixerRecompute recompute = MixerRecompute::None);

}  // namespace braid
