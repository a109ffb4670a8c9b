#include "models/radio.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>

#include <algorithm>
#include <map>

#include "base/problem_list.h"
#include "dist/collectives.h"
#include "nn/linear.h"
#include "nn/recompute.h"
#include "nn/self_attention.h"
#include "ops/norm.h"

namespace braid {
namespace {

// An image's class tokens and patches are one sequence.
PackedSequences sequences_of(const std::vector<PatchGrid>& images, int class_tokens, const at::Device& device) {
  std::vector<std::int64_t> offsets = {0};
  for (const PatchGrid& image : images) offsets.push_back(offsets.back() + class_tokens + image.patches());
  return pack_sequences(std::move(offsets), device);
}

// The position embedding of each image, computed once for all images of the same grid.
std::vector<at::Tensor> positions_of(const at::Tensor& table, const std::vector<PatchGrid>& images) {
  std::map<std::pair<std::int64_t, std::int64_t>, at::Tensor> by_grid;
  std::vector<at::Tensor> positions;
  for (const PatchGrid& image : images) {
    at::Tensor& known = by_grid[{image.rows, image.columns}];
    if (!known.defined()) known = interpolate_positions(table, image);
    positions.push_back(known);
  }
  return positions;
}

// Far beyond any image, so that a product of two sides cannot overflow; nor can a sum that stays below the second.
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
      problems.add(fmt::format("{}, which patches of {} x {} do not tile", image, patch, patch), where,
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

// Pre-norm attention and MLP, all with biases; a layer scale, where there is one, on each branch.
class Radio::TransformerLayer {
 public:
  TransformerLayer(const RadioConfig& config, const Parameters& parameters, const std::string& prefix,
                   const Parallel& parallel)
      : attention_{config.heads, config.heads, config.hidden / config.heads},
        norm_eps_(config.norm_eps),
        gelu_(config.gelu == "tanh" ? "tanh" : "none"),
        parallel_(parallel),
        qkv_(parameters, prefix + "self_attention.linear_qkv."),
        proj_(parameters, prefix + "self_attention.linear_proj."),
        attention_scale_(parameters.get_if_declared(prefix + "self_attention.layer_scale")),
        fc1_(parameters, prefix + "mlp.linear_fc1."),
        fc2_(parameters, prefix + "mlp.linear_fc2."),
        mlp_scale_(parameters.get_if_declared(prefix + "mlp.layer_scale")) {}

  at::Tensor forward(const at::Tensor& x, const PackedSequences& images) const {
    const at::Tensor attended = attend(normed_columns(x, qkv_), attention_, false, images, parallel_);
    const at::Tensor y = x + scaled(row_linear(attended, proj_.weight, proj_.bias, parallel_), attention_scale_);
    const at::Tensor activated = at::gelu(normed_columns(y, fc1_), gelu_);
    return y + scaled(row_linear(activated, fc2_.weight, fc2_.bias, parallel_), mlp_scale_);
  }

 private:
  struct Linear {
    at::Tensor weight, bias, norm_weight, norm_bias;  // the norm: of its input, where it has one

    Linear(const Parameters& parameters, const std::string& prefix)
        : weight(parameters.get(prefix + "weight")),
          bias(parameters.get_if_declared(prefix + "bias")),
          norm_weight(parameters.get_if_declared(prefix + "layer_norm_weight")),
          norm_bias(parameters.get_if_declared(prefix + "layer_norm_bias")) {}
  };

  at::Tensor normed_columns(const at::Tensor& x, const Linear& linear) const {
    const at::Tensor normed = layer_norm(x, linear.norm_weight, linear.norm_bias, norm_eps_);
    return column_linear(normed, linear.weight, linear.bias, parallel_);
  }

  static at::Tensor scaled(const at::Tensor& branch, const at::Tensor& scale) {
    return scale.defined() ? branch * scale : branch;
  }

  const AttentionShape attention_;
  const double norm_eps_;
  const char* const gelu_;
  const Parallel& parallel_;
  const Linear qkv_, proj_;
  const at::Tensor attention_scale_;
  const Linear fc1_, fc2_;
  const at::Tensor mlp_scale_;
};

Radio::Radio(const RadioConfig& config, const Parameters& parameters, const Parallel& parallel, int stage, int pp,
             bool recompute)
    : config_(config), parameters_(parameters), parallel_(parallel), stage_(stage), pp_(pp), recompute_(recompute) {
  BRAID_CHECK(!parallel.sequence_parallel, "every tp rank of RADIO has all tokens");
  const std::vector<int> bounds = stage_bounds(config, pp);
  for (int layer = bounds[stage]; layer < bounds[stage + 1]; ++layer)
    layers_.push_back(
        std::make_unique<TransformerLayer>(config, parameters, fmt::format("decoder.layers.{}.", layer), parallel));
}

Radio::~Radio() = default;

at::Tensor Radio::normalize(const at::Tensor& patches) const {
  const at::Tensor mean = parameters_.get("input_conditioner.norm_mean").reshape({config_.channels, 1});
  const at::Tensor std = parameters_.get("input_conditioner.norm_std").reshape({config_.channels, 1});
  // The buffers are fp32 or wider, and so is the result.
  return ((patches.unflatten(1, {config_.channels, -1}) - mean) / std).flatten(1);
}

at::Tensor Radio::embed(const at::Tensor& patches, const std::vector<PatchGrid>& images) const {
  BRAID_CHECK_EQ(patches.size(0), total_patches(images), "patches of {} images", images.size());
  const at::Tensor& weight = parameters_.get("embedder.weight");
  const at::Tensor pixels = config_.normalize_pixels ? normalize(patches) : patches;
  const at::Tensor own_features = column_linear(pixels.to(weight.scalar_type()), weight, {}, parallel_);
  const at::Tensor embedded = parallel_.tp.size() > 1 ? all_gather(own_features, parallel_.tp, 1) : own_features;
  if (images.empty()) return embedded;

  std::vector<std::int64_t> lengths;
  for (const PatchGrid& image : images) lengths.push_back(image.patches());
  const std::vector<at::Tensor> by_image = embedded.split_with_sizes(lengths);
  const std::vector<at::Tensor> positions = positions_of(parameters_.get("position_embeddings").squeeze(0), images);
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < images.size(); ++i) {
    parts.push_back(parameters_.get("class_token"));
    parts.push_back(by_image[i] + positions[i]);
  }
  return at::cat(parts);
}

at::Tensor Radio::run_layers(at::Tensor x, const std::vector<PatchGrid>& images) const {
  const PackedSequences sequences = sequences_of(images, config_.class_tokens, x.device());
  for (const auto& layer : layers_) {
    const auto forward = [layer = layer.get(), sequences](const at::Tensor& input) {
      return layer->forward(input, sequences);
    };
    x = recompute_ ? recompute(forward, x, parameters_.trains()) : forward(x);
  }
  return x;
}

at::Tensor Radio::features(const at::Tensor& x, const std::vector<PatchGrid>& images) const {
  const at::Tensor normed = config_.final_norm
                                ? layer_norm(x, parameters_.get("decoder.final_layernorm.weight"),
                                             parameters_.get("decoder.final_layernorm.bias"), config_.norm_eps)
                                : x;
  if (images.empty() || config_.class_tokens == 0) return normed;
  std::vector<std::int64_t> lengths;
  for (const PatchGrid& image : images) lengths.insert(lengths.end(), {config_.class_tokens, image.patches()});
  const std::vector<at::Tensor> parts = normed.split_with_sizes(lengths);
  std::vector<at::Tensor> kept;
  for (std::size_t i = 1; i < parts.size(); i += 2) kept.push_back(parts[i]);
  return at::cat(kept);
}

}  // namespace braid
