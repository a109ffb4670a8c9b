// Attention on a GPU in bf16 or half: by cuDNN where it is built in and knows the shape, but forward by Braid's kernel
// where it has one (kernels/attention.h); else by libtorch's flash attention.
#pragma once

#include "ops/attention.h"

namespace braid::cuda {

bool has_attention(const at::Tensor& groups);
OutputAndSaved<AttentionSaved> attention_forward(const at::Tensor& groups, const PackedSequences& sequences,
                                                 bool causal, double scale);
at::Tensor attention_backward(const at::Tensor& grad, const at::Tensor& groups, const AttentionSaved& saved,
                              const PackedSequences& sequences, bool causal, double scale);

}  // namespace braid::cuda
