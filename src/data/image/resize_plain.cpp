#include <algorithm>

#include "data/image/resize_kernels.h"
#include "data/image/resize_weights.h"

namespace braid {
namespace {

constexpr int kHalf = 1 << (kWeightBits - 1);

std::uint8_t rounded(int sum) { return static_cast<std::uint8_t>(std::clamp(sum >> kWeightBits, 0, 255)); }

void horizontal(const std::uint8_t* from, int width, int rows, const ResizeWeights& weights, std::uint8_t* to) {
  for (int y = 0; y < rows; ++y, from += std::ptrdiff_t{3} * width)
    for (int x = 0; x < weights.outputs(); ++x)
      for (int channel = 0; channel < 3; ++channel) {
        const std::uint8_t* pixel = from + std::ptrdiff_t{3} * weights.windows[x].first + channel;
        int sum = kHalf;
        for (int k = 0; k < weights.windows[x].count; ++k, pixel += 3) sum += *pixel * weights.of(x)[k];
        *to++ = rounded(sum);
      }
}

void vertical(const std::uint8_t* from, std::size_t row_bytes, const ResizeWeights& weights, std::uint8_t* to) {
  for (int y = 0; y < weights.outputs(); ++y) {
    const std::uint8_t* rows = from + row_bytes * weights.windows[y].first;
    for (std::size_t x = 0; x < row_bytes; ++x) {
      int sum = kHalf;
      for (int k = 0; k < weights.windows[y].count; ++k) sum += rows[row_bytes * k + x] * weights.of(y)[k];
      *to++ = rounded(sum);
    }
  }
}

}  // namespace

const ResizeKernels kPlainResize = {"plain", horizontal, vertical};

}  // namespace braid
