// Copies to shared memory that run ahead of their use.
#pragma once

#include <cuda_pipeline.h>

#include <cstdint>

namespace braid::kernels {

// Runs copy(i, stage), then use(i, stage), for i = 0, ..., count - 1; copies run kStages - 1 turns ahead. A use of what
// other threads copied begins and ends with a barrier.
template <int kStages, class Copy, class Use>
__device__ void pipeline(std::int64_t count, const Copy& copy, const Use& use) {
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < count) copy(i, i);
    __pipeline_commit();
  }
  int stage = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (const std::int64_t ahead = i + kStages - 1; ahead < count) copy(ahead, stage == 0 ? kStages - 1 : stage - 1);
    __pipeline_commit();
    __pipeline_wait_prior(kStages - 1);
    use(i, stage);
    stage = stage + 1 < kStages ? stage + 1 : 0;
  }
}

}  // namespace braid::kernels
