// Bidirectional attention in bf16 on Hopper, inside each of several packed sequences. Heads are 80 or 96 wide, which
// other kernels pad to 128.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

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

}  // namespace braid::kernels
