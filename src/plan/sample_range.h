#pragma once

#include <cstdint>

namespace braid {

// Consecutive samples of a microbatch.
struct SampleRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

}  // namespace braid
