// Dynamic resolution: each picture keeps about its size and aspect, within a budget of patches.
#pragma once

#include <vector>

#include "data/image/patches.h"

namespace braid {

struct DynamicResolutionConfig {
  int patch = 16;                // pixels per side
  std::int64_t min_patches = 0;  // smaller pictures are enlarged to about as many
  std::int64_t max_patches = 0;  // per picture; 0: no limit but the budget
  int min_side = 0;              // pixels; 0: none
  int divisor = 1;               // sides in patches are multiples of it: 2 if 2 x 2 patches are joined
};

// The patches of one picture. Never more than `budget`, unless that is below divisor^2, the smallest grid.
CellGrid fit_patches(PixelSize picture, std::int64_t budget, const DynamicResolutionConfig& config);

// The patches of all pictures of a sample that has room for `embeddings`. They fit, unless min_patches of each picture
// (or the smallest grids) already take more.
std::vector<CellGrid> fit_pictures(const std::vector<PixelSize>& pictures, std::int64_t embeddings,
                                   const DynamicResolutionConfig& config);

}  // namespace braid
