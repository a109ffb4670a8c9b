#pragma once

#include "ops/packed_sequences.h"
#include "tensor/autograd.h"

namespace braid {

// The ways in which attention is computed, and those that this process has taken so far, for the log.
enum class AttentionPath { Products, Flash, Cudnn, CudnnPacked, BraidFlash };
inline constexpr std::array kAttentionPathNames = {"matrix products", "flash", "cuDNN", "cuDNN packed",
                                                   "Braid's flash"};

inline std::array<std::atomic<bool>, kAttentionPathNames.size()> attention_paths_taken{};

// softmax(q k^T * scale) v inside each sequence. Heads come in groups, as a fused projection gives them: some query
// heads, and the key and the value that they share. Causal: a token attends to itself and the tokens before it. Saves
// its input, the output and one log-sum-exp per token and query head; never materialises a [T, T] matrix.
// groups: [T, G, queries + 2, D] -> [T, G * queries, D]
at::Tensor attention(const at::Tensor& groups, const PackedSequences& sequences, bool causal, double scale);

struct AttentionSaved {
  AttentionPath path = AttentionPath::Products;
  at::Tensor out, log_sum_exp;      // [T, Hq, D]; fp32 or wider, in the layout of the path
  at::Tensor random_state, unused;  // needed by the backward of libtorch's flash attention; undefined elsewhere
};
// On a GPU in bf16 or half: by cuDNN where it is built in and knows the shape, but forward by Braid's kernel where it
// has one (kernels/attention.h); else by libtorch's flash attention.
OutputAndSaved<AttentionSaved> attention_forward(const at::Tensor& groups, const PackedSequences& sequences,
                                                 bool causal, double scale);
// The gradient of `groups`.
at::Tensor attention_backward(const at::Tensor& grad, const at::Tensor& groups, const AttentionSaved& saved,
                              const PackedSequences& sequences, bool causal, double scale);

// Attention's backward reads this setting; Braid's own kernels are always deterministic. Operators without a
// deterministic form may run. Uninitialized memory is not filled: that would cost a pass over each new tensor.
void set_deterministic(bool deterministic);

}  // namespace braid
