// Images' patches by Braid's kernels; see ops/has_kernel.h. `table` is what image_table() makes.
#pragma once

#include "ops/vision.h"

namespace braid::cuda {

at::Tensor image_table(const std::vector<PatchGrid>& images, const at::Device& device);

at::Tensor pixel_shuffle_forward(const at::Tensor& x, const at::Tensor& table);
at::Tensor pixel_shuffle_backward(const at::Tensor& grad, const at::Tensor& table);

at::Tensor place_patches_forward(const at::Tensor& patches, const at::Tensor& positions, const at::Tensor& class_token,
                                 const at::Tensor& table);
Tensors place_patches_backward(const at::Tensor& grad, const PlacePatchesNeeds& needs, const at::Tensor& table);

}  // namespace braid::cuda
