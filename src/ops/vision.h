#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace braid {

struct PatchGrid {
  std::int64_t rows = 0, columns = 0;
  std::int64_t patches() const { return rows * columns; }
};

inline std::int64_t total_patches(const std::vector<PatchGrid>& images) {
  std::int64_t total = 0;
  for (const PatchGrid& image : images) total += image.patches();
  return total;
}

// RADIO's position embedding for one image: the square table of side x side positions is resized bilinearly
// (align_corners = false, no antialiasing) to m x m with m = max(rows, columns), in fp32 or wider, and its top left
// rows x columns corner is taken, row-major. Only that corner is computed.   table: [side * side, H] -> [rows *
// columns, H]
at::Tensor interpolate_positions(const at::Tensor& table, PatchGrid grid);

// Joins each 2 x 2 square of patches into one token of 4 H channels, in the order (0,0), (0,1), (1,0), (1,1), image by
// image. Rows and columns must be even.   x: [sum of patches, H] -> [sum of patches / 4, 4 H]
at::Tensor pixel_shuffle(const at::Tensor& x, const std::vector<PatchGrid>& images);

}  // namespace braid
