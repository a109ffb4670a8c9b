// Attention by cuDNN in bf16. cuDNN needs tens of milliseconds to make the plan of a shape, so plans are kept for the
// life of the process.
#pragma once

#include <cuda_runtime_api.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace braid::kernels {

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

// Whether cuDNN has a backward for this shape on the current GPU that does not need too much memory. It may have a
// forward alone.
bool has_cudnn_attention_backward(const CudnnAttention& shape);

// False, and nothing is done, if cuDNN cannot do it. Both throw std::runtime_error if it fails.
bool cudnn_attention_forward(const CudnnAttention& shape, const AttentionTensors& tensors,
                             const AllocateWorkspace& allocate, cudaStream_t stream);
bool cudnn_attention_backward(const CudnnAttention& shape, AttentionTensors tensors, AttentionGradients gradients,
                              const AllocateWorkspace& allocate, cudaStream_t stream);

}  // namespace braid::kernels
