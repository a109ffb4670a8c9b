#pragma once

#include <cstdint>
#include <vector>

namespace braid {

// Distributes layers over pipeline stages as evenly as possible: stage s has [bounds[s], bounds[s + 1]).
inline std::vector<int> even_stages(int layers, int pp) {
  std::vector<int> bounds;
  for (int stage = 0; stage <= pp; ++stage) bounds.push_back(static_cast<int>(std::int64_t{layers} * stage / pp));
  return bounds;
}

}  // namespace braid
