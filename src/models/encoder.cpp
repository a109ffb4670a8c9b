#include "models/encoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/promote_types.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

#include "base/error.h"
#include "ops/activation.h"
#include "ops/packed_sequences.h"

namespace braid {
namespace {

// Far larger than any image, so that a product of two sides cannot overflow, nor a sum below the second limit.
constexpr std::int64_t kLongestSide = 1 << 20, kMostPatches = std::int64_t{1} << 40;

void check_items(const RadioConfig&, const Extents&) {}

void check_items(const ClipConfig& config, const Extents& images) {
  const std::int64_t side = config.patch_side();
  for (std::size_t i = 0; i < images.size(); ++i)
    if (images[i] != std::vector{side, side})
      throw DataError(
          fmt::format("image {} of {} has {} x {} patches of {} pixels; this CLIP takes {} x {} (images of {} x {} "
                      "pixels): resize it",
                      i, images.size(), images[i].at(0), images[i].at(1), config.patch, side, side, config.image_side,
                      config.image_side));
}

void check_items(const AudioConfig& config, const Extents& clips) {
  const std::int64_t multiple = config.frames_per_token();
  for (std::size_t i = 0; i < clips.size(); ++i)
    if (const std::int64_t frames = clips[i].at(0); frames < 0 || frames % multiple != 0)
      throw DataError(fmt::format("clip {} of {} has {} frames, not a multiple of the {} per token: pad it, e.g. to {}",
                                  i, clips.size(), frames, multiple, (frames / multiple + 1) * multiple));
}

EncoderLayersConfig layers_of(const EncoderModel& config) {
  return std::visit([](const auto& c) { return layers_of(c); }, config);
}

}  // namespace

std::vector<PatchGrid> grids_of(const Extents& images) {
  std::vector<PatchGrid> grids;
  for (const auto& extent : images) grids.push_back({extent.at(0), extent.at(1)});
  return grids;
}

Extents extents_of(const std::vector<PatchGrid>& images) {
  Extents extents;
  for (const PatchGrid& image : images) extents.push_back({image.rows, image.columns});
  return extents;
}

Extents extents_of(const std::vector<std::int64_t>& frames) {
  Extents extents;
  for (const std::int64_t count : frames) extents.push_back({count});
  return extents;
}

Encoder::Encoder(const EncoderModel& config, const Parameters& parameters, const Parallel& parallel, int stage, int pp,
                 const RecomputeConfig& recompute)
    : config_(config),
      parameters_(parameters),
      parallel_(parallel),
      stage_(stage),
      pp_(pp),
      layers_(layers_of(config), parameters, parallel, stage, pp, recompute) {
  const char* prefix = std::holds_alternative<ClipConfig>(config) ? "conv1." : "embedder.";
  if (is_first_stage()) embedder_.emplace(parameters, prefix, Split::Columns, parallel);
}

void Encoder::check(const Extents& items) const {
  std::visit([&](const auto& c) { check_items(c, items); }, config_);
}

PackedSequences Encoder::sequences_of(const Extents& items, const at::Device& device) const {
  std::vector<std::int64_t> offsets = {0};
  for (const auto& extent : items) offsets.push_back(offsets.back() + hidden_rows_of(config_, extent));
  return pack_sequences(std::move(offsets), device);
}

at::Tensor Encoder::embed(const at::Tensor& values, const Extents& items) const {
  check(items);
  return std::visit([&](const auto& c) { return embed_as(c, values, items); }, config_);
}

at::Tensor Encoder::run_layers(at::Tensor x, const Extents& items) const {
  check(items);
  const PackedSequences sequences = sequences_of(items, x.device());
  return layers_.run(std::move(x), sequences);
}

at::Tensor Encoder::features(const at::Tensor& x, const Extents& items) const {
  check(items);
  return std::visit([&](const auto& c) { return features_as(c, x, items); }, config_);
}

// --- RADIO

at::Tensor Encoder::normalize(const at::Tensor& patches, int channels) const {
  const at::Tensor mean = parameters_.get("input_conditioner.norm_mean").reshape({channels, 1});
  const at::Tensor std = parameters_.get("input_conditioner.norm_std").reshape({channels, 1});
  // The buffers are fp32 or wider, so the result is too.
  return ((patches.unflatten(1, {channels, -1}) - mean) / std).flatten(1);
}

at::Tensor Encoder::embed_as(const RadioConfig& c, const at::Tensor& patches, const Extents& images) const {
  for (const char* prefix : {"class_token", "position_embeddings", "embedder."}) parameters_.await(prefix);
  const Linear& embedder = embedder_.value();
  const at::Tensor pixels = c.normalize_pixels ? normalize(patches, c.channels) : patches;
  const at::Tensor embedded = gather_features(embedder(pixels.to(embedder.dtype())), parallel_);
  return place_patches(embedded, parameters_.get("position_embeddings").squeeze(0), parameters_.get("class_token"),
                       grids_of(images));
}

at::Tensor Encoder::features_as(const RadioConfig& c, const at::Tensor& x, const Extents& images) const {
  const at::Tensor normed = c.final_norm ? named_layer_norm(x, parameters_, "decoder.final_layernorm", c.norm_eps) : x;
  if (images.empty() || c.class_tokens == 0) return normed;
  std::vector<std::int64_t> lengths;
  for (const PatchGrid& image : grids_of(images)) lengths.insert(lengths.end(), {c.class_tokens, image.patches()});
  const std::vector<at::Tensor> parts = normed.split_with_sizes(lengths);
  std::vector<at::Tensor> kept;
  for (std::size_t i = 1; i < parts.size(); i += 2) kept.push_back(parts[i]);
  return at::cat(kept);
}

// --- CLIP

at::Tensor Encoder::embed_as(const ClipConfig& c, const at::Tensor& patches, const Extents& images) const {
  const std::int64_t tokens = std::int64_t{c.patch_side()} * c.patch_side(), count = std::ssize(images);
  BRAID_CHECK_EQ(patches.size(0), tokens * count, "patches of {} images", count);
  for (const char* prefix : {"class_token", "position_embeddings.", "conv1."}) parameters_.await(prefix);
  const Linear& conv1 = embedder_.value();
  const at::Tensor embedded = gather_features(conv1(patches.to(conv1.dtype())), parallel_);
  const at::Tensor class_tokens = parameters_.get("class_token").expand({count, 1, c.hidden});
  const at::Tensor by_image = at::cat({class_tokens, embedded.reshape({count, tokens, c.hidden})}, 1);
  const at::Tensor placed = (by_image + parameters_.get("position_embeddings.weight")).flatten(0, 1);
  return named_layer_norm(placed, parameters_, "ln_pre", c.norm_eps);
}

at::Tensor Encoder::features_as(const ClipConfig& c, const at::Tensor& x, const Extents& images) const {
  const std::int64_t tokens = std::int64_t{c.patch_side()} * c.patch_side(), count = std::ssize(images);
  return x.reshape({count, 1 + tokens, c.hidden}).narrow(1, 1, tokens).reshape({count * tokens, c.hidden});
}

// --- audio

at::Tensor Encoder::embed_as(const AudioConfig& c, const at::Tensor& frames, const Extents& clips) const {
  const PackedSequences sequences = sequences_of(clips, frames.device());
  BRAID_CHECK_EQ(frames.size(0), 2 * sequences.tokens(), "frames of {} clips", clips.size());
  parameters_.await("embedder.");
  const Linear& embedder = embedder_.value();
  const at::Tensor pairs = frames.to(embedder.dtype()).reshape({sequences.tokens(), 2 * std::int64_t{c.mels}});
  return gather_features(activation(embedder(pairs), Activation::GeluErf), parallel_) +
         sinusoids(sequences.position_of, c.hidden, embedder.dtype());
}

at::Tensor Encoder::features_as(const AudioConfig& c, const at::Tensor& x, const Extents&) const {
  return named_layer_norm(x, parameters_, "decoder.final_layernorm", c.norm_eps)
      .reshape({x.size(0) / c.stack, c.feature_width()});
}

// --- with its projector

namespace {

// Of an encoder that does not normalise its pixels itself.
const PixelStats& pixel_stats_of(const EncoderConfig& encoder) {
  const auto* radio = std::get_if<RadioConfig>(&encoder.model);
  const std::string name = radio && radio->normalize_pixels ? "none" : encoder.pixel_stats;
  for (const PixelStats& stats : all_pixel_stats())
    if (stats.name == name) return stats;
  throw_check_failed(__FILE__, __LINE__, "no pixel statistics are called " + name);
}

}  // namespace

EncoderStage::EncoderStage(const EncoderConfig& config, const Parameters& encoder, const Parameters* projector,
                           const Parallel& parallel, const StagePosition& position, const RecomputeConfig& recompute)
    : features_(features_of(config.model)),
      pixel_shuffle_(config.pixel_shuffle && !std::holds_alternative<AudioConfig>(config.model)),
      parameters_(encoder),
      model_(config.model, encoder, parallel, position.stage, position.stages, recompute) {
  BRAID_CHECK_EQ(projector != nullptr, position.is_last(), "the projector is on the last stage");
  if (projector) projector_.emplace(config.projector, *projector, parallel);
  const auto dtype = at::promote_types(at::kFloat, at::typeMetaToScalarType(options().dtype()));
  const auto column = [&](const std::array<double, 3>& values) {
    return at::tensor(at::ArrayRef<double>(values), at::kDouble).to(options().dtype(dtype)).unsqueeze(1);
  };
  mean_ = column(pixel_stats_of(config).mean);
  std_ = column(pixel_stats_of(config).std);
}

at::TensorOptions EncoderStage::options() const {
  return parameters_.entries().front().value.options().requires_grad(false);
}

at::Tensor EncoderStage::forward(const at::Tensor& x, const Extents& items) const {
  const at::Tensor encoded = encode(x, items);
  return projector_ ? projector_->forward(encoded) : encoded;
}

at::Tensor EncoderStage::encode(at::Tensor x, const Extents& items) const {
  at::AutoGradMode grad_mode(at::GradMode::is_enabled() && parameters_.trains());
  if (model_.is_first_stage())
    x = model_.embed(x.defined() ? input_values(x) : at::empty({0, features_}, options()), items);
  x = model_.run_layers(x, items);
  if (!model_.is_last_stage()) return x;
  x = model_.features(x, items);
  return pixel_shuffle_ ? pixel_shuffle(x, grids_of(items)) : x;
}

// Bytes are pixels from 0 to 255; other values are taken as they are.
at::Tensor EncoderStage::input_values(const at::Tensor& x) const {
  if (x.scalar_type() != at::kByte) return x.to(options());
  const at::Tensor pixels = x.to(mean_.scalar_type()).div_(255).unflatten(1, {mean_.size(0), -1});
  return pixels.sub_(mean_).div_(std_).flatten(1).to(options());
}

// --- patches

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

}  // namespace braid
