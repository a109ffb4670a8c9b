#include "models/radio.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include <algorithm>

#include "base/error.h"
#include "nn/linear.h"

namespace braid {
namespace {

// An image's class tokens and patches form one sequence.
PackedSequences sequences_of(const std::vector<PatchGrid>& images, int class_tokens, const at::Device& device) {
  std::vector<std::int64_t> offsets = {0};
  for (const PatchGrid& image : images) offsets.push_back(offsets.back() + class_tokens + image.patches());
  return pack_sequences(std::move(offsets), device);
}

// Far larger than any image, so that a product of two sides cannot overflow, nor a sum below the second limit.
constexpr std::int64_t kLongestSide = 1 << 20, kMostPatches = std::int64_t{1} << 40;

}  // namespace

std::vector<PatchGrid> patch_grids(const std::vector<ImageSize>& images, int patch, const std::string& where) {
  std::vector<PatchGrid> grids;
  ProblemList problems;
  std::int64_t patches = 0;
  const auto next_multiple = [&](std::int64_t side) {
    return std::max<std::int64_t>(1, (side + patch - 1) / patch) * patch;
  };
  for (std::size_t i = 0; i < images.size(); ++i) {
    const auto [height, width] = images[i];
    const PatchGrid grid = {height / patch, width / patch};
    const std::string image = fmt::format("image {} of {} is {} x {} pixels", i, images.size(), height, width);
    if (grid.rows > kLongestSide || grid.columns > kLongestSide)
      problems.add(fmt::format("{}, which is too large", image), where,
                   fmt::format("use sides of {} patches of {} pixels or less", kLongestSide, patch));
    else if (height < 1 || width < 1 || height % patch != 0 || width % patch != 0)
      problems.add(fmt::format("{}, not a multiple of the {} x {} patch", image, patch, patch), where,
                   fmt::format("resize or pad it, e.g. to {} x {}", next_multiple(height), next_multiple(width)));
    else if (patches <= kMostPatches)
      patches += grid.patches();
    grids.push_back(grid);
  }
  if (patches > kMostPatches)
    problems.add(fmt::format("{} images have more than {} patches", images.size(), kMostPatches), where,
                 "use fewer images");
  problems.throw_if_any();
  return grids;
}

at::Tensor patchify(const at::Tensor& pixels, int patch) {
  BRAID_CHECK_EQ(pixels.dim(), 4, "pixels are [images, channels, height, width]");
  const std::int64_t count = pixels.size(0), channels = pixels.size(1);
  patch_grids(std::vector<ImageSize>(static_cast<std::size_t>(count), {pixels.size(2), pixels.size(3)}), patch);
  const std::int64_t rows = pixels.size(2) / patch, columns = pixels.size(3) / patch;
  return pixels.reshape({count, channels, rows, patch, columns, patch})
      .permute({0, 2, 4, 1, 3, 5})
      .reshape({count * rows * columns, channels * patch * patch});
}

Radio::Radio(const RadioConfig& config, const Parameters& parameters, const Parallel& parallel, int stage, int pp,
             const RecomputeConfig& recompute)
    : config_(config),
      parameters_(parameters),
      parallel_(parallel),
      stage_(stage),
      pp_(pp),
      layers_(layers_of(config), parameters, parallel, stage, pp, recompute) {
  if (is_first_stage()) embedder_.emplace(parameters, "embedder.", Split::Columns, parallel);
}

at::Tensor Radio::normalize(const at::Tensor& patches) const {
  const at::Tensor mean = parameters_.get("input_conditioner.norm_mean").reshape({config_.channels, 1});
  const at::Tensor std = parameters_.get("input_conditioner.norm_std").reshape({config_.channels, 1});
  // The buffers are fp32 or wider, so the result is too.
  return ((patches.unflatten(1, {config_.channels, -1}) - mean) / std).flatten(1);
}

at::Tensor Radio::embed(const at::Tensor& patches, const std::vector<PatchGrid>& images) const {
  BRAID_CHECK_EQ(patches.size(0), total_patches(images), "patches of {} images", images.size());
  for (const char* prefix : {"class_token", "position_embeddings", "embedder."}) parameters_.await(prefix);
  const Linear& embedder = embedder_.value();
  const at::Tensor pixels = config_.normalize_pixels ? normalize(patches) : patches;
  const at::Tensor embedded = gather_features(embedder(pixels.to(embedder.dtype())), parallel_);
  return place_patches(embedded, parameters_.get("position_embeddings").squeeze(0), parameters_.get("class_token"),
                       images);
}

at::Tensor Radio::run_layers(at::Tensor x, const std::vector<PatchGrid>& images) const {
  const PackedSequences sequences = sequences_of(images, config_.class_tokens, x.device());
  return layers_.run(std::move(x), sequences);
}

at::Tensor Radio::features(const at::Tensor& x, const std::vector<PatchGrid>& images) const {
  const at::Tensor normed =
      config_.final_norm ? named_layer_norm(x, parameters_, "decoder.final_layernorm", config_.norm_eps) : x;
  if (images.empty() || config_.class_tokens == 0) return normed;
  std::vector<std::int64_t> lengths;
  for (const PatchGrid& image : images) lengths.insert(lengths.end(), {config_.class_tokens, image.patches()});
  const std::vector<at::Tensor> parts = normed.split_with_sizes(lengths);
  std::vector<at::Tensor> kept;
  for (std::size_t i = 1; i < parts.size(); i += 2) kept.push_back(parts[i]);
  return at::cat(kept);
}

}  // namespace braid
