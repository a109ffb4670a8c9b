#pragma once

#include "kernels/matrix.h"
#include "kernels/parameter.h"

namespace braid::kernels {

struct ConvFilter {
  Parameter weight;  // [C, taps]
  Parameter bias;    // [C], or none
  int taps = 0;
};

inline bool has_causal_conv(std::int64_t taps) { return taps >= 2 && taps <= 4; }

// silu(bias + depthwise causal convolution) inside each sequence, as ops/causal_conv.h defines it.
// x, y: [T, C]; position_of: [T], the token's position in its sequence
template <class T>
void causal_conv_silu_forward(Matrix<const T> x, const ConvFilter& filter, const std::int64_t* position_of, Matrix<T> y,
                              cudaStream_t stream);

// `partials` has causal_conv_partials(T) rows of (taps + 1) * C elements.
std::int64_t causal_conv_partials(std::int64_t tokens);
template <class T>
void causal_conv_silu_backward(Matrix<const T> grad, Matrix<const T> x, const ConvFilter& filter,
                               const std::int64_t* position_of, Matrix<T> x_grad, float* partials,
                               const ConvFilter& filter_grad, cudaStream_t stream);

}  // namespace braid::kernels
