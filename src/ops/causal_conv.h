#pragma once

#include "ops/packed_sequences.h"

namespace braid {

// silu(bias + depthwise causal convolution): y[t, c] = silu(bias[c] + sum_j weight[c, j] * x[t - (K-1) + j, c]), where
// what lies before the start of a token's sequence counts as zero.   x: [T, C], weight: [C, K], bias: [C] or undefined
at::Tensor causal_conv_silu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            const PackedSequences& sequences);

}  // namespace braid
