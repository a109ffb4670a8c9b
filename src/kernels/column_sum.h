// Sums over rows, always added in the same order: blocks sum some rows each, and if these are not all rows, a second
// kernel adds their partial sums.
#pragma once

#include "kernels/matrix.h"

namespace braid::kernels {

// sums[column] = the sum of x[row][column] over all rows. `partials`: column_sum_partials(x's sizes) x columns floats.
std::int64_t column_sum_partials(std::int64_t rows, std::int64_t columns);
template <class T>
void column_sum(Matrix<const T> x, float* partials, T* sums, cudaStream_t stream);

// The second kernel alone: the sums over all rows of `partials`, which is dense.
template <class T>
void add_partials(Matrix<const float> partials, T* sums, cudaStream_t stream);

}  // namespace braid::kernels
