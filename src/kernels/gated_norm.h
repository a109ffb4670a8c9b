#pragma once

#include "kernels/matrix.h"
#include "kernels/parameter.h"

namespace braid::kernels {

// A group has to fit into the registers of a block.
inline bool has_gated_rms_norm(std::int64_t group_size) { return group_size > 0 && group_size <= 8192; }

// Mamba2's gated norm, as ops/norm.h defines it.   y, z, out: [T, D]; weight: [D]; inverse_root: [T, groups]
template <class T>
void gated_rms_norm_forward(Matrix<const T> y, Matrix<const T> z, Parameter weight, std::int64_t groups, float eps,
                            Matrix<T> out, float* inverse_root, cudaStream_t stream);

// `partials` has gated_rms_norm_partials(T) rows of D elements.
std::int64_t gated_rms_norm_partials(std::int64_t tokens);
template <class T>
void gated_rms_norm_backward(Matrix<const T> grad, Matrix<const T> y, Matrix<const T> z, Parameter weight,
                             std::int64_t groups, const float* inverse_root, Matrix<T> y_grad, Matrix<T> z_grad,
                             float* partials, Parameter weight_grad, cudaStream_t stream);

}  // namespace braid::kernels
