// Where a token stands in its sequence, as numbers that attention can use. Angles are computed in double.
#pragma once

#include "tensor/autograd.h"

namespace braid {

// Rotary embedding: channels i and i + D / 2 of every vector turn together by position * theta^(-2i / D). Saves only
// the positions.   x: [T, ..., D], positions: [T] int64
at::Tensor rotary_embedding(const at::Tensor& x, const at::Tensor& positions, double theta);
at::Tensor rotary_embedding_forward(const at::Tensor& x, const at::Tensor& positions, double theta);
at::Tensor rotary_embedding_backward(const at::Tensor& grad, const at::Tensor& positions, double theta);  // of x

// Waves of D / 2 lengths from 2 pi to 10000 * 2 pi: their sines, then their cosines.   positions: [T] int64 -> [T, D]
at::Tensor sinusoids(const at::Tensor& positions, std::int64_t width, at::ScalarType dtype);

}  // namespace braid
