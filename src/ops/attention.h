#pragma once

#include "ops/packed_sequences.h"

namespace braid {

// softmax(q k^T * scale) v inside each sequence; query head i uses key/value head i / (Hq / Hkv). Causal: a token sees
// itself and what is before it. Saves q, k, v, the output and one log-sum-exp per token and query head; never holds a
// matrix of all tokens by all tokens.   q: [T, Hq, Dh], k, v: [T, Hkv, Dh] -> [T, Hq, Dh]
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const PackedSequences& sequences,
                     bool causal, double scale);

}  // namespace braid
