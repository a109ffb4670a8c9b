#include "ops/vision.h"
#include "cases.h"
#include "ops/linear.h"

namespace braid {

// RADIO-H: 8 images of 32 x 32 patches, a table of 128 x 128 positions, 10 class tokens.
std::vector<KernelCase> vision_cases() {
  const std::vector<PatchGrid> images(8, PatchGrid{32, 32});
  constexpr std::int64_t kSide = 128, kClassTokens = 10;
  const at::Tensor patches = random_bf16({total_patches(images), kRadioHidden});
  const at::Tensor table = random_bf16({kSide * kSide, kRadioHidden});
  const at::Tensor class_token = random_bf16({kClassTokens, kRadioHidden});
  const at::Tensor grad = random_bf16({kRadioTokens, kRadioHidden});
  const at::Tensor tokens_grad = random_bf16({total_patches(images) / 4, 4 * kRadioHidden});
  const at::Tensor wide_grad = random_bf16({kRadioTokens, 4 * kRadioHidden});
  const at::Tensor qkv_grad = random_bf16({kRadioTokens, 3 * kRadioHidden});
  const PlacePatchesNeeds needs = {kSide, kClassTokens, true, true, true};
  const auto bytes = static_cast<double>(patches.nbytes()), table_bytes = static_cast<double>(table.nbytes());
  const at::Tensor placed = place_patches_forward(patches, table, class_token, images).saved;
  const at::Tensor shuffled = pixel_shuffle_forward(patches, images).saved;
  const auto table_part = 4 * 32 * 32 * 2.0 * kRadioHidden;  // four entries for each position
  return {
      {"place_patches", 2 * bytes + table_part, 0, [=] { place_patches_forward(patches, table, class_token, images); }},
      {"place_patches backward", 2 * bytes + table_bytes, 0,
       [=] { place_patches_backward(grad, needs, images, placed); }},
      {"pixel_shuffle", 2 * bytes, 0, [=] { pixel_shuffle_forward(patches, images); }},
      {"pixel_shuffle backward", 2 * bytes, 0, [=] { pixel_shuffle_backward(tokens_grad, images, shuffled); }},
      {"column_sum, RADIO hidden", static_cast<double>(grad.nbytes()), 0, [=] { column_sum(grad); }},
      {"column_sum, RADIO qkv", static_cast<double>(qkv_grad.nbytes()), 0, [=] { column_sum(qkv_grad); }},
      {"column_sum, RADIO ffn", static_cast<double>(wide_grad.nbytes()), 0, [=] { column_sum(wide_grad); }}};
}

}  // namespace braid
