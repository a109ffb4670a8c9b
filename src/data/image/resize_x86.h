// What the versions of resizing for x86 processors share.
//
// The fast multiplication is pmaddwd: products of 16-bit numbers, added in pairs to 32 bits. A weight has up to 24
// bits, so it is split into `high * 2^12 + low`, and the sums of both parts are put together at the end. 32-bit
// arithmetic wraps around alike in any order, so the result is exact.
#pragma once

#include "data/image/resize_kernels.h"
#include "data/image/resize_weights.h"

namespace braid {

inline constexpr int kHalfLevel = 1 << (kWeightBits - 1), kLowBits = 12;

// The weights of two neighbouring inputs, as pmaddwd takes them.
struct PairWeights {
  std::int32_t high, low;
};

inline PairWeights pair_of(std::int32_t first, std::int32_t second) {
  const auto packed = [](std::int32_t a, std::int32_t b) {
    return static_cast<std::int32_t>((static_cast<std::uint32_t>(b) << 16) | (static_cast<std::uint32_t>(a) & 0xffff));
  };
  constexpr std::int32_t kMask = (1 << kLowBits) - 1;
  return {packed(first >> kLowBits, second >> kLowBits), packed(first & kMask, second & kMask)};
}

// Resizes columns; `one_row` computes one row of the result from `count` rows.
using ResizeRowFunction = void (*)(const std::uint8_t* rows, std::size_t row_bytes, const PairWeights* pairs, int count,
                                   std::uint8_t* to);
void resize_vertically(const std::uint8_t* from, std::size_t row_bytes, const ResizeWeights& weights, std::uint8_t* to,
                       ResizeRowFunction one_row);

// Needs the parts of AVX-512 that has_avx512_resize looks for.
bool has_avx512_resize();
extern const ResizeKernels kAvx512Resize;

}  // namespace braid
