// Which pixels a resized pixel is computed from, along one axis.
#pragma once

#include <cstdint>
#include <vector>

namespace braid {

// Weights are in units of 2^-22, so that a sum of 8-bit pixels times weights fits 32 bits.
inline constexpr int kWeightBits = 22;

struct ResizeWeights {
  struct Window {
    int first, count;
  };
  // Output i is the sum of of(i)[k] * input[windows[i].first + k] for k < windows[i].count.
  std::vector<Window> windows{};
  std::vector<std::int32_t> values{};
  int stride = 0;  // of `values`, per output; the values after `count` are 0

  int outputs() const { return static_cast<int>(windows.size()); }
  const std::int32_t* of(int output) const { return values.data() + std::int64_t{output} * stride; }
};

// `support`: half of the width of `filter`, in pixels of the larger size.
ResizeWeights resize_weights(int inputs, int outputs, double support, double (*filter)(double));

}  // namespace braid
