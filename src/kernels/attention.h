// Attention in bf16 inside each of several packed sequences: by a kernel of our own for Hopper, bidirectional, with
// heads of 80 or 96, which other kernels pad to 128; and by cuDNN, forward and backward.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace braid::kernels {

// Heads come in groups: some query heads, then the key and the value that they share. Group g's head j of token t
// starts at data + t * token + g * group + j * head.
struct AttentionGroups {
  const __nv_bfloat16* data = nullptr;
  std::int64_t tokens = 0, groups = 0, queries = 0, width = 0;  // queries: of a group
  std::int64_t token = 0, group = 0, head = 0;                  // strides
};

struct AttentionSequences {
  const std::int32_t* ends = nullptr;  // [count + 1] on the device, from 0 to the number of tokens
  std::int64_t count = 0;
};

// Whether the current device is a Hopper GPU, this program was compiled for it, and the kernel knows such heads.
bool has_attention(const AttentionGroups& groups);

// softmax(q k^T * scale) v for a positive scale, and the log-sum-exp of each row of scores.
// out: [T, G * queries, D]; log_sum_exp: for each sequence [G, its tokens, queries]
void attention_forward(const AttentionGroups& groups, const AttentionSequences& sequences, double scale,
                       __nv_bfloat16* out, float* log_sum_exp, cudaStream_t stream);

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

// Of packed parts: [parts] tokens of each, and [parts + 1] first elements of each in q, k, v (relative to their
// pointers), in the output, and in the statistics.
struct PartTables {
  const std::int32_t* lengths = nullptr;
  const std::int64_t *in_inputs = nullptr, *in_output = nullptr, *in_statistics = nullptr;
};

struct AttentionTensors {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void *out = nullptr, *statistics = nullptr;  // log-sum-exp, fp32: [parts, query_heads, length], or packed [length,
                                               // query_heads] for each part
  PartTables parts{};
};

struct AttentionGradients {
  const void* out = nullptr;
  void *q = nullptr, *k = nullptr, *v = nullptr;
};

using AllocateWorkspace = std::function<void*(std::size_t bytes)>;

// Whether cuDNN has a backward for this shape on the current GPU that needs at most 9 GiB of workspace. It may have a
// forward alone.
bool has_cudnn_attention_backward(const CudnnAttention& shape);

// False, and nothing is done, if cuDNN cannot do it. Both throw std::runtime_error if it fails.
bool cudnn_attention_forward(const CudnnAttention& shape, const AttentionTensors& tensors,
                             const AllocateWorkspace& allocate, cudaStream_t stream);
bool cudnn_attention_backward(const CudnnAttention& shape, AttentionTensors tensors, AttentionGradients gradients,
                              const AllocateWorkspace& allocate, cudaStream_t stream);

}  // namespace braid::kernels
