#pragma once

#include "kernels/matrix.h"

namespace braid::kernels {

// Rows of values of a RandomField (base/philox.h): element [row][column] is value first + row * row_step + column.
struct RandomRows {
  std::uint64_t seed = 0, name_hash = 0, first = 0, row_step = 0;
};

// x = scale * normal, or scale * (2 * uniform - 1), in double and rounded to float and then to T: as on a CPU.
template <class T>
void draw(const Matrix<T>& x, const RandomRows& values, bool normal, double scale, cudaStream_t stream);

}  // namespace braid::kernels
