#pragma once

#include "ops/packed_sequences.h"
#include "tensor/autograd.h"

namespace braid {

// softmax(q k^T * scale) v inside each sequence; query head i uses key/value head i / (Hq / Hkv). Causal: a token
// attends to itself and the tokens before it. Saves q, k, v, the output and one log-sum-exp per token and query head;
// never materialises a [T, T] matrix.   q: [T, Hq, Dh], k, v: [T, Hkv, Dh] -> [T, Hq, Dh]
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const PackedSequences& sequences,
                     bool causal, double scale);

struct AttentionSaved {
  at::Tensor out, log_sum_exp;      // [T, Hq, Dh], [T, Hq, 1]; flash attention stores the latter in its own layout
  at::Tensor random_state, unused;  // needed by the backward of libtorch's flash attention; undefined elsewhere
};
OutputAndSaved<AttentionSaved> attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                 const PackedSequences& sequences, bool causal, double scale);
Tensors attention_backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const AttentionSaved& saved, const PackedSequences& sequences, bool causal,
                           double scale);  // gradients of q, k, v

}  // namespace braid
