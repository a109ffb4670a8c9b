// The gradients of experts' weights after a grouped product.
#pragma once

#include "kernels/matrix.h"

namespace braid::kernels {

// `size` elements for each expert; expert e has rows ends[e - 1] to ends[e].
struct ExpertWeights {
  const std::int32_t* ends = nullptr;
  std::int64_t experts = 0, size = 0;
};

// sum += grad for experts that have rows; the gradients of the others are never read.
void add_gradients(const __nv_bfloat16* grad, const ExpertWeights& weights, float* sum, cudaStream_t stream);
// grad = 0 for experts without rows.
void clear_gradients(const ExpertWeights& weights, __nv_bfloat16* grad, cudaStream_t stream);

}  // namespace braid::kernels
