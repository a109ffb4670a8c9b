// Pillow's antialiased resizing of 8-bit images, with its exact results: weights in fixed point, a pass over the rows
// and one over the columns, each rounded to 8 bits.
#pragma once

#include <cstdint>
#include <vector>

#include "data/image/image.h"

namespace braid {

enum class ResizeFilter { Bicubic, Bilinear };

// `size` has at least one pixel per side.
Image resize(const Image& image, PixelSize size, ResizeFilter filter);

// Weights are in units of 2^-22, so that a sum of 8-bit pixels times weights fits 32 bits.
inline constexpr int kWeightBits = 22;

// Which pixels a resized pixel is computed from, along one axis.
struct ResizeWeights {
  struct Window {
    int first, count;
  };
  // Output i is the sum of of(i)[k] * input[windows[i].first + k] for k < windows[i].count.
  std::vector<Window> windows{};
  std::vector<std::int32_t> values{};
  int stride = 0;  // of `values`, per output; a multiple of 4, and the values after `count` are 0

  int outputs() const { return static_cast<int>(windows.size()); }
  const std::int32_t* of(int output) const { return values.data() + std::int64_t{output} * stride; }
};
ResizeWeights resize_weights(ResizeFilter filter, int inputs, int outputs);

}  // namespace braid
