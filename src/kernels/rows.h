#pragma once

#include "kernels/matrix.h"

namespace braid::kernels {

// y[i] = there[numbers[i]], or elsewhere[i] where the number is negative; zeros in place of a matrix without data.
template <class T>
void pick_rows(const std::int64_t* numbers, const Matrix<const T>& there, const Matrix<const T>& elsewhere,
               const Matrix<T>& y, cudaStream_t stream);

}  // namespace braid::kernels
