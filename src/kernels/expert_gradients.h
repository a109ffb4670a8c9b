// The gradients of experts' weights after a grouped product, which may leave those of experts without rows undefined.
#pragma once

#include "kernels/matrix.h"

namespace braid::kernels {

// `size` elements for each expert; expert e has rows ends[e - 1] to ends[e].
struct ExpertWeights {
  const std::int32_t* ends = nullptr;
  std::int64_t experts = 0, size = 0;
};

// grad = 0 for experts without rows.
void clear_gradients(const ExpertWeights& weights, __nv_bfloat16* grad, cudaStream_t stream);

}  // namespace braid::kernels
