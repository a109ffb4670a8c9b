// Attention in bf16 inside each of several packed sequences: by a kernel of our own for Hopper, bidirectional, with
// heads of 80 or 96, which other kernels pad to 128; and by cuDNN, forward and backward.
#pragma once

#include <compare>
#include <cstdint>
#include "kernels/tensor.h"

namespace braid::kernels {

// Heads come in groups: some query heads, then the key and the value that they share.   groups: [T, G, queries + 2, D]

// Whether the current device is a Hopper GPU, this program was compiled for it, and the kernel knows such heads.
bool has_attention(const Tensor& groups);

// softmax(q k^T * scale) v for a positive scale, and the log-sum-exp of each row of scores.   ends: [sequences + 1],
// from 0 to T; out: [T, G * queries, D]; log_sum_exp: for each sequence [G, its tokens, queries]
void attention_forward(const Tensor& groups, const Tensor& ends, double scale, const Tensor& out,
                       const Tensor& log_sum_exp, const Queue& queue);

// cuDNN needs tens of milliseconds to make the plan of a shape, so plans are kept for the life of the process.

// Where vectors of `width` elements are, in elements from the first one: of token t and head h of part b at
// b * part + h * head + t * token, or, of packed parts, at part_begin[b] + h * head + t * token.
struct AttentionStrides {
  std::int64_t part = 0, head = 0, token = 0;
  auto operator<=>(const AttentionStrides&) const = default;
};

// Independent parts (a sequence, or one group of its heads), each of `length` tokens, or packed: of up to `length`.
struct CudnnAttention {
  std::int64_t parts = 0, length = 0, query_heads = 0, key_heads = 0, width = 0;
  AttentionStrides queries{}, keys{}, out{};  // values lie like keys
  bool causal = false, packed = false, deterministic = false;
  double scale = 1;
  auto operator<=>(const CudnnAttention&) const = default;
};

struct AttentionTensors {
  Tensor q, k, v, out;
  Tensor statistics;  // log-sum-exp, fp32: [parts, query_heads, length], or packed [length, query_heads] for each part
  // Of packed parts: [parts] tokens of each, and [parts + 1] first elements of each in q, k, v (relative to their
  // pointers), in the output, and in the statistics.
  Tensor lengths, in_inputs, in_output, in_statistics;
  Tensor out_grad, q_grad, k_grad, v_grad;  // of the backward
};

// Whether cuDNN has a backward for this shape on the current GPU that needs at most 9 GiB of workspace. It may have a
// forward alone.
bool has_cudnn_attention_backward(const CudnnAttention& shape);

// False, and nothing is done, if cuDNN cannot do it. Both throw std::runtime_error if it fails.
bool cudnn_attention_forward(const CudnnAttention& shape, const AttentionTensors& tensors, const Queue& queue);
bool cudnn_attention_backward(const CudnnAttention& shape, const AttentionTensors& tensors, const Queue& queue);

}  // namespace braid::kernels
