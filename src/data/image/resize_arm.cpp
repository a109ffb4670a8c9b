// Resizing with Arm's NEON: four 32-bit sums at a time.
#include <arm_neon.h>

#include <algorithm>
#include <cstring>

#include "data/image/resize_kernels.h"
#include "data/image/resize_weights.h"

namespace braid {
namespace {

constexpr int kHalf = 1 << (kWeightBits - 1);

// Shifts, and clamps to 0..255 in two steps of narrowing.
uint8x8_t rounded(int32x4_t low, int32x4_t high) {
  const uint16x4_t a = vqmovun_s32(vshrq_n_s32(low, kWeightBits)), b = vqmovun_s32(vshrq_n_s32(high, kWeightBits));
  return vqmovn_u16(vcombine_u16(a, b));
}

int32x4_t widened(uint16x4_t values) { return vreinterpretq_s32_u32(vmovl_u16(values)); }

// One pixel and a byte of the next, as four numbers.
int32x4_t load_pixel(const std::uint8_t* from) {
  std::uint32_t bytes;
  std::memcpy(&bytes, from, sizeof(bytes));
  return widened(vget_low_u16(vmovl_u8(vcreate_u8(bytes))));
}

void horizontal(const std::uint8_t* from, int width, int rows, const ResizeWeights& weights, std::uint8_t* to) {
  for (int y = 0; y < rows; ++y, from += std::ptrdiff_t{3} * width)
    for (int x = 0; x < weights.outputs(); ++x, to += 3) {
      const std::uint8_t* pixel = from + std::ptrdiff_t{3} * weights.windows[x].first;
      const std::int32_t* values = weights.of(x);
      int32x4_t sum = vdupq_n_s32(kHalf);
      for (int k = 0; k < weights.windows[x].count; ++k, pixel += 3)
        sum = vmlaq_n_s32(sum, load_pixel(pixel), values[k]);
      std::uint8_t result[8];
      vst1_u8(result, rounded(sum, sum));
      std::memcpy(to, result, 3);
    }
}

void vertical(const std::uint8_t* from, std::size_t row_bytes, const ResizeWeights& weights, std::uint8_t* to) {
  for (int y = 0; y < weights.outputs(); ++y, to += row_bytes) {
    const std::uint8_t* rows = from + row_bytes * weights.windows[y].first;
    const std::int32_t* values = weights.of(y);
    for (std::size_t x = 0; x < row_bytes; x += 8) {
      int32x4_t low = vdupq_n_s32(kHalf), high = low;
      const std::uint8_t* at = rows + x;
      for (int k = 0; k < weights.windows[y].count; ++k, at += row_bytes) {
        const uint16x8_t pixels = vmovl_u8(vld1_u8(at));
        low = vmlaq_n_s32(low, widened(vget_low_u16(pixels)), values[k]);
        high = vmlaq_n_s32(high, widened(vget_high_u16(pixels)), values[k]);
      }
      vst1_u8(to + x, rounded(low, high));
    }
  }
}

}  // namespace

std::vector<ResizeKernels> vector_resize_kernels() { return {{"NEON", horizontal, vertical}}; }

}  // namespace braid
