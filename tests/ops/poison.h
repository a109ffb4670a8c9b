#pragma once

#include "ops/gradients.h"

namespace braid::testing {

// Fills memory that a GPU's allocator holds with NaN, so that gradients that a kernel leaves unwritten are seen.
inline void poison_free_memory() {
  if (test_device().is_cpu()) return;
  Tensors blocks;
  constexpr std::int64_t kOfSmallPool = 200'000, kOfLargePool = 4'000'000;
  for (const std::int64_t size : {kOfSmallPool, kOfSmallPool, kOfSmallPool, kOfSmallPool, kOfLargePool})
    blocks.push_back(
        at::full({size}, std::numeric_limits<float>::quiet_NaN(), at::TensorOptions(at::kFloat).device(test_device())));
}

}  // namespace braid::testing
