#pragma once

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

// What RADIO's layers begin with: of every image its class tokens, then its patches plus their position embeddings.
// patches: [P, H], table: [side * side, H], class_token: [C, H] -> [P + C * images, H]
at::Tensor place_patches(const at::Tensor& patches, const at::Tensor& table, const at::Tensor& class_token,
                         const std::vector<PatchGrid>& images);

struct PlacePatchesNeeds {
  std::int64_t side = 0, class_tokens = 0;
  bool patches_grad = false, positions_grad = false, class_token_grad = false;
};
// Saved: the images in a form for kernels, on their device; undefined if the forward used none.
OutputAndSaved<at::Tensor> place_patches_forward(const at::Tensor& patches, const at::Tensor& table,
                                                 const at::Tensor& class_token, const std::vector<PatchGrid>& images);
Tensors place_patches_backward(const at::Tensor& grad, const PlacePatchesNeeds& needs,
                               const std::vector<PatchGrid>& images, const at::Tensor& on_device);

// Joins each 2 x 2 square of patches into one token of 4 H channels, in the order (0,0), (0,1), (1,0), (1,1), image by
// image. Rows and columns must be even.   x: [sum of patches, H] -> [sum of patches / 4, 4 H]
at::Tensor pixel_shuffle(const at::Tensor& x, const std::vector<PatchGrid>& images);
// Saved: as of place_patches_forward.
OutputAndSaved<at::Tensor> pixel_shuffle_forward(const at::Tensor& x, const std::vector<PatchGrid>& images);
at::Tensor pixel_shuffle_backward(const at::Tensor& grad, const std::vector<PatchGrid>& images,
                                  const at::Tensor& on_device);

}  // namespace braid
