// Several sequences end to end on one token axis of T tokens. Every operation along a sequence (attention, convolution,
// state space scan) stays inside it.
#pragma once

#include <ATen/core/Tensor.h>

namespace braid {

inline constexpr std::int64_t kScanChunk = 128;

struct PackedSequences {
  std::vector<std::int64_t> offsets;  // 0 = start of the first, ..., T = end of the last
  at::Tensor cu_seqlens;              // [n + 1] int32, the same on the tensors' device
  at::Tensor sequence_of;             // [T] int64 on the device: which sequence a token belongs to
  at::Tensor position_of;             // [T] int64 on the device: its position in the sequence
  // [chunks, 4] int32 on the device: pieces of at most kScanChunk tokens of one sequence. A piece has its first token,
  // how many it has, its sequence, and 1 if it is the first of that sequence plus 2 if it is the last.
  at::Tensor chunks;
  std::int64_t max_length = 0;

  std::int64_t tokens() const { return offsets.back(); }
  std::int64_t count() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
};

// Offsets must start at 0 and never decrease; empty sequences are allowed. Later uses copy nothing between host and
// device.
PackedSequences pack_sequences(std::vector<std::int64_t> offsets, const at::Device& device);

// Encodings of a token's position in its sequence. Angles are computed in double.

// Rotary embedding: rotates channels i and i + D / 2 of every vector together by position * theta^(-2i / D). Of the
// vectors along the last dimension but one, only the first `rotated` are; the others stay as they are. Saves only the
// positions.   x: [T, ..., vectors, D], positions: [T] int64
at::Tensor rotary_embedding(const at::Tensor& x, const at::Tensor& positions, double theta, std::int64_t rotated);

// Sines, then cosines, of D / 2 waves with lengths from 2 pi to 10000 * 2 pi.   positions: [T] int64 -> [T, D]
at::Tensor sinusoids(const at::Tensor& positions, std::int64_t width, at::ScalarType dtype);

}  // namespace braid
