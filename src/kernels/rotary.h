#pragma once

#include "kernels/matrix.h"

namespace braid::kernels {

// Vectors of `width` channels, several per token.
template <class T>
struct Heads {
  T* data = nullptr;
  std::int64_t tokens = 0, heads = 0, width = 0;
  std::int64_t token_stride = 0, head_stride = 0;
};

inline bool has_rotary(std::int64_t width) { return width > 0 && width <= 2048; }

// Rotates channels i and i + width / 2 by direction * position * theta^(-2i / width); the angle is computed in double.
// positions: [tokens]
template <class T>
void rotate(Heads<const T> x, const std::int64_t* positions, double theta, double direction, Heads<T> y,
            cudaStream_t stream);

}  // namespace braid::kernels
