#pragma once

#include <cstdint>
#include <vector>

#include "tensor/autograd.h"

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

// Bilinear resizing is linear in rows and in columns separately, hence two small matrix products.
struct ResizeMatrices {
  at::Tensor to_rows, to_columns;  // [rows, side], [columns, side], in the dtype of the arithmetic
};
OutputAndSaved<ResizeMatrices> interpolate_positions_forward(const at::Tensor& table, PatchGrid grid);
at::Tensor interpolate_positions_backward(const at::Tensor& grad,
                                          const ResizeMatrices& saved);  // gradient of the table

// Joins each 2 x 2 square of patches into one token of 4 H channels, in the order (0,0), (0,1), (1,0), (1,1), image by
// image. Rows and columns must be even.   x: [sum of patches, H] -> [sum of patches / 4, 4 H]
at::Tensor pixel_shuffle(const at::Tensor& x, const std::vector<PatchGrid>& images);
at::Tensor pixel_shuffle_forward(const at::Tensor& x, const std::vector<PatchGrid>& images);
at::Tensor pixel_shuffle_backward(const at::Tensor& grad, const std::vector<PatchGrid>& images);  // saves no tensor

}  // namespace braid
