// Encodings of a token's position in its sequence. Angles are computed in double.
#pragma once

#include "tensor/autograd.h"

namespace braid {

// Rotary embedding: rotates channels i and i + D / 2 of every vector together by position * theta^(-2i / D). Of the
// vectors along the last dimension but one, only the first `rotated` are; the others stay as they are. Saves only the
// positions.   x: [T, ..., vectors, D], positions: [T] int64
at::Tensor rotary_embedding(const at::Tensor& x, const at::Tensor& positions, double theta, std::int64_t rotated);

// Sines, then cosines, of D / 2 waves with lengths from 2 pi to 10000 * 2 pi.   positions: [T] int64 -> [T, D]
at::Tensor sinusoids(const at::Tensor& positions, std::int64_t width, at::ScalarType dtype);

namespace cuda {  // positions_cuda.cpp

bool has_rotary(std::int64_t width);
// Direction 1 is the forward, -1 the backward.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& positions, double theta, double direction);

}  // namespace cuda
}  // namespace braid
