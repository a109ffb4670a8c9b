// Encodings of a token's position in its sequence. Angles are computed in double.
#pragma once

#include "tensor/autograd.h"

namespace braid {

// Rotary embedding: rotates channels i and i + D / 2 of every vector together by position * theta^(-2i / D). Of the
// vectors along the last dimension but one, only the first `rotated` are; the others stay as they are. Saves only the
// positions.   x: [T, ..., vectors, D], positions: [T] int64
at::Tensor rotary_embedding(const at::Tensor& x, const at::Tensor& positions, double theta, std::int64_t rotated);
at::Tensor rotary_embedding_forward(const at::Tensor& x, const at::Tensor& positions, double theta,
                                    std::int64_t rotated);
at::Tensor rotary_embedding_backward(const at::Tensor& grad, const at::Tensor& positions, double theta,
                                     std::int64_t rotated);  // gradient of x

// Sines, then cosines, of D / 2 waves with lengths from 2 pi to 10000 * 2 pi.   positions: [T] int64 -> [T, D]
at::Tensor sinusoids(const at::Tensor& positions, std::int64_t width, at::ScalarType dtype);

}  // namespace braid
