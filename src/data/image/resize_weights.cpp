#include "data/image/resize_weights.h"

#include <algorithm>
#include <cmath>

namespace braid {

ResizeWeights resize_weights(int inputs, int outputs, double support, double (*filter)(double)) {
  const double scale = static_cast<double>(inputs) / outputs;
  const double filter_scale = std::max(scale, 1.0);  // a filter as wide as an output pixel: no aliases
  const double reach = support * filter_scale;
  ResizeWeights weights;
  weights.stride = std::min(static_cast<int>(std::ceil(reach)) * 2 + 1, inputs);
  weights.values.resize(static_cast<std::size_t>(outputs) * weights.stride);
  std::vector<double> window(weights.stride);
  for (int i = 0; i < outputs; ++i) {
    const double centre = (i + 0.5) * scale;
    const int first = std::max(static_cast<int>(centre - reach + 0.5), 0);
    const int count = std::min(static_cast<int>(centre + reach + 0.5), inputs) - first;
    double sum = 0;
    for (int k = 0; k < count; ++k) {
      window[k] = filter((k + first - centre + 0.5) * (1.0 / filter_scale));
      sum += window[k];
    }
    std::int32_t* values = weights.values.data() + std::int64_t{i} * weights.stride;
    for (int k = 0; k < count; ++k) {
      const double weight = sum != 0 ? window[k] / sum : 0;
      values[k] = static_cast<std::int32_t>(weight * (1 << kWeightBits) + (weight < 0 ? -0.5 : 0.5));
    }
    weights.windows.push_back({first, count});
  }
  return weights;
}

}  // namespace braid
