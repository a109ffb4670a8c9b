#include "models/clip.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include "base/error.h"

namespace braid {
namespace {

void check_images(const std::vector<PatchGrid>& images, const ClipConfig& config) {
  const std::int64_t side = config.patch_side();
  for (std::size_t i = 0; i < images.size(); ++i)
    if (images[i].rows != side || images[i].columns != side)
      throw DataError(
          fmt::format("image {} of {} has {} x {} patches of {} pixels; this CLIP takes {} x {} (images of {} x {} "
                      "pixels): resize it",
                      i, images.size(), images[i].rows, images[i].columns, config.patch, side, side, config.image_side,
                      config.image_side));
}

}  // namespace

Clip::Clip(const ClipConfig& config, const Parameters& parameters, const Parallel& parallel, int stage, int pp,
           const RecomputeConfig& recompute)
    : config_(config),
      parameters_(parameters),
      parallel_(parallel),
      stage_(stage),
      pp_(pp),
      layers_(layers_of(config), parameters, parallel, stage, pp, recompute) {
  if (is_first_stage()) conv1_.emplace(parameters, "conv1.", Split::Columns, parallel);
}

at::Tensor Clip::embed(const at::Tensor& patches, const std::vector<PatchGrid>& images) const {
  check_images(images, config_);
  BRAID_CHECK_EQ(patches.size(0), total_patches(images), "patches of {} images", images.size());
  const auto count = static_cast<std::int64_t>(images.size());
  for (const char* prefix : {"class_token", "position_embeddings.", "conv1."}) parameters_.await(prefix);
  const Linear& conv1 = conv1_.value();
  const at::Tensor embedded = gather_features(conv1(patches.to(conv1.dtype())), parallel_);
  const std::int64_t tokens = std::int64_t{config_.patch_side()} * config_.patch_side();
  const at::Tensor class_tokens = parameters_.get("class_token").expand({count, 1, config_.hidden});
  const at::Tensor by_image = at::cat({class_tokens, embedded.reshape({count, tokens, config_.hidden})}, 1);
  const at::Tensor placed = (by_image + parameters_.get("position_embeddings.weight")).flatten(0, 1);
  return named_layer_norm(placed, parameters_, "ln_pre", config_.norm_eps);
}

at::Tensor Clip::run_layers(at::Tensor x, const std::vector<PatchGrid>& images) const {
  check_images(images, config_);
  std::vector<std::int64_t> offsets = {0};
  for (const PatchGrid& image : images) offsets.push_back(offsets.back() + 1 + image.patches());
  const PackedSequences sequences = pack_sequences(std::move(offsets), x.device());
  return layers_.run(std::move(x), sequences);
}

at::Tensor Clip::features(const at::Tensor& x, const std::vector<PatchGrid>& images) const {
  check_images(images, config_);
  const std::int64_t tokens = std::int64_t{config_.patch_side()} * config_.patch_side();
  return x.reshape({static_cast<std::int64_t>(images.size()), 1 + tokens, config_.hidden})
      .narrow(1, 1, tokens)
      .reshape({total_patches(images), config_.hidden});
}

}  // namespace braid
