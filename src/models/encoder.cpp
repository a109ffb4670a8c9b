#include "models/encoder.h"
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/promote_types.h>
#include <ATen/ops/tensor.h>
#include "nn/layer.h"
#include "nn/self_attention.h"
#include "ops/packed_sequences.h"

namespace braid {
namespace {

// Far larger than any image, so that a product of two sides cannot overflow, nor a sum below the second limit.
constexpr std::int64_t kLongestSide = 1 << 20, kMostPatches = std::int64_t{1} << 40;

std::vector<PatchGrid> grids_of(const Extents& images) {
  return vector_of<PatchGrid>(images, [](const auto& extent) { return PatchGrid{extent.at(0), extent.at(1)}; });
}

PackedSequences sequences_of(const EncoderModel& config, const Extents& items, const at::Device& device) {
  std::vector<std::int64_t> offsets = {0};
  for (const auto& extent : items) offsets.push_back(offsets.back() + hidden_rows_of(config, extent));
  return pack_sequences(std::move(offsets), device);
}

// Applies the norm of that name once its weight and bias have arrived.
at::Tensor named_layer_norm(const at::Tensor& x, const Parameters& parameters, const std::string& name, double eps) {
  parameters.await(name + ".");
  return layer_norm(x, parameters.get(name + ".weight"), parameters.get(name + ".bias"), eps);
}

// The linear map from values of patches or frames.
struct Embedder {
  const Parameters& parameters;
  const Parallel& parallel;
  const Linear& linear;

  at::Tensor operator()(const at::Tensor& values) const {
    return gather_features(linear(values.to(linear.dtype())), parallel);
  }
};

// --- RADIO

void check_items(const RadioConfig&, const Extents&) {}

at::Tensor normalize(const at::Tensor& patches, int channels, const Parameters& parameters) {
  const at::Tensor mean = parameters.get("input_conditioner.norm_mean").reshape({channels, 1});
  const at::Tensor std = parameters.get("input_conditioner.norm_std").reshape({channels, 1});
  // The buffers are fp32 or wider, so the result is too.
  return ((patches.unflatten(1, {channels, -1}) - mean) / std).flatten(1);
}

at::Tensor embed_as(const RadioConfig& c, const Embedder& embedder, const at::Tensor& patches, const Extents& images) {
  const Parameters& parameters = embedder.parameters;
  for (const char* prefix : {"class_token", "position_embeddings", "embedder."}) parameters.await(prefix);
  return place_patches(embedder(c.normalize_pixels ? normalize(patches, c.channels, parameters) : patches),
                       parameters.get("position_embeddings").squeeze(0), parameters.get("class_token"),
                       grids_of(images));
}

at::Tensor features_as(const RadioConfig& c, const Parameters& parameters, const at::Tensor& x, const Extents& images) {
  const at::Tensor normed = c.final_norm ? named_layer_norm(x, parameters, "decoder.final_layernorm", c.norm_eps) : x;
  if (images.empty() || c.class_tokens == 0) return normed;
  std::vector<std::int64_t> lengths;
  for (const PatchGrid& image : grids_of(images)) lengths.insert(lengths.end(), {c.class_tokens, image.patches()});
  const std::vector<at::Tensor> parts = normed.split_with_sizes(lengths);
  std::vector<at::Tensor> kept;
  for (std::size_t i = 1; i < parts.size(); i += 2) kept.push_back(parts[i]);
  return at::cat(kept);
}

// --- CLIP

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

at::Tensor embed_as(const ClipConfig& c, const Embedder& embedder, const at::Tensor& patches, const Extents& images) {
  const Parameters& parameters = embedder.parameters;
  const std::int64_t tokens = std::int64_t{c.patch_side()} * c.patch_side(), count = std::ssize(images);
  BRAID_CHECK_EQ(patches.size(0), tokens * count, "patches of {} images", count);
  for (const char* prefix : {"class_token", "position_embeddings.", "conv1."}) parameters.await(prefix);
  const at::Tensor embedded = embedder(patches);
  const at::Tensor class_tokens = parameters.get("class_token").expand({count, 1, c.hidden});
  const at::Tensor by_image = at::cat({class_tokens, embedded.reshape({count, tokens, c.hidden})}, 1);
  const at::Tensor placed = (by_image + parameters.get("position_embeddings.weight")).flatten(0, 1);
  return named_layer_norm(placed, parameters, "ln_pre", c.norm_eps);
}

at::Tensor features_as(const ClipConfig& c, const Parameters&, const at::Tensor& x, const Extents& images) {
  const std::int64_t tokens = std::int64_t{c.patch_side()} * c.patch_side(), count = std::ssize(images);
  return x.reshape({count, 1 + tokens, c.hidden}).narrow(1, 1, tokens).reshape({count * tokens, c.hidden});
}

// --- audio

void check_items(const AudioConfig& config, const Extents& clips) {
  const std::int64_t multiple = config.frames_per_token();
  for (std::size_t i = 0; i < clips.size(); ++i)
    if (const std::int64_t frames = clips[i].at(0); frames < 0 || frames % multiple != 0)
      throw DataError(fmt::format("clip {} of {} has {} frames, not a multiple of the {} per token: pad it, e.g. to {}",
                                  i, clips.size(), frames, multiple, (frames / multiple + 1) * multiple));
}

at::Tensor embed_as(const AudioConfig& c, const Embedder& embedder, const at::Tensor& frames, const Extents& clips) {
  const PackedSequences sequences = sequences_of(c, clips, frames.device());
  BRAID_CHECK_EQ(frames.size(0), 2 * sequences.tokens(), "frames of {} clips", clips.size());
  embedder.parameters.await("embedder.");
  const Linear& map = embedder.linear;
  const at::Tensor pairs = frames.to(map.dtype()).reshape({sequences.tokens(), 2 * std::int64_t{c.mels}});
  return gather_features(activation(map(pairs), Activation::GeluErf), embedder.parallel) +
         sinusoids(sequences.position_of, c.hidden, map.dtype());
}

at::Tensor features_as(const AudioConfig& c, const Parameters& parameters, const at::Tensor& x, const Extents&) {
  return named_layer_norm(x, parameters, "decoder.final_layernorm", c.norm_eps)
      .reshape({x.size(0) / c.stack, c.feature_width()});
}

}  // namespace

// --- layers

// Pre-norm attention and MLP, all with biases, and an optional layer scale on each branch.
class Encoder::TransformerLayer {
 public:
  TransformerLayer(const EncoderLayersConfig& config, const Parameters& parameters, const std::string& prefix,
                   const Parallel& parallel, const RecomputeConfig& recompute)
      : attention_{config.heads, config.heads, config.hidden / config.heads}, norm_eps_(config.norm_eps),
        recompute_(recompute), gelu_(config.gelu == GeluForm::Quick  ? Activation::QuickGelu
                                     : config.gelu == GeluForm::Tanh ? Activation::GeluTanh
                                                                     : Activation::GeluErf),
        parallel_(parallel), qkv_(parameters, prefix + "self_attention.linear_qkv.", parallel),
        proj_(parameters, prefix + "self_attention.linear_proj.", Split::Rows, parallel),
        attention_scale_(parameters.get_if_declared(prefix + "self_attention.layer_scale")),
        fc1_(parameters, prefix + "mlp.linear_fc1.", parallel),
        fc2_(parameters, prefix + "mlp.linear_fc2.", Split::Rows, parallel),
        mlp_scale_(parameters.get_if_declared(prefix + "mlp.layer_scale")) {}

  void add_to(Residual& stream, const PackedSequences& sequences, Result output) const {
    const at::Tensor attended = attend(qkv_.linear(normed(stream, qkv_)), attention_, false, sequences, parallel_);
    stream.add(scaled(proj_.branch(attended), attention_scale_));
    stream.add(scaled(mlp(stream, mlp_scale_.defined() ? Result::Needed : output), mlp_scale_));
  }

 private:
  struct NormedLinear {
    at::Tensor norm_weight, norm_bias;
    Linear linear;

    NormedLinear(const Parameters& parameters, const std::string& prefix, const Parallel& parallel)
        : norm_weight(parameters.get(prefix + "layer_norm_weight")),
          norm_bias(parameters.get(prefix + "layer_norm_bias")), linear(parameters, prefix, Split::Columns, parallel) {}
  };

  Recomputable normed(const Residual& x, const NormedLinear& map) const {
    return x.layer_norm(map.norm_weight, map.norm_bias, norm_eps_, recompute_.norms);
  }

  Branch mlp(const Residual& x, Result output) const {
    return Linear::gelu_branch(normed(x, fc1_), fc1_.linear, fc2_, gelu_, recompute_.activations, output);
  }

  static Branch scaled(const Branch& branch, const at::Tensor& scale) {
    return scale.defined() ? Branch(branch.value() * scale) : branch;
  }

  const AttentionShape attention_;
  const double norm_eps_;
  const RecomputeConfig recompute_;
  const Activation gelu_;
  const Parallel& parallel_;
  const NormedLinear qkv_;
  const Linear proj_;
  const at::Tensor attention_scale_;
  const NormedLinear fc1_;
  const Linear fc2_;
  const at::Tensor mlp_scale_;
};

Encoder::Encoder(const EncoderModel& config, const Parameters& parameters, const Parallel& parallel, int stage, int pp,
                 const RecomputeConfig& recompute)
    : config_(config), parameters_(parameters), parallel_(parallel), recompute_(in_encoder(recompute)), stage_(stage),
      pp_(pp) {
  BRAID_CHECK(!parallel.sequence_parallel, "every tp rank of an encoder has all tokens");
  const EncoderLayersConfig layers = std::visit([](const auto& c) { return layers_of(c); }, config);
  const std::vector<int> bounds = even_stages(layers.layers, pp);
  for (int layer = bounds[stage]; layer < bounds[stage + 1]; ++layer) {
    const std::string prefix = fmt::format("decoder.layers.{}.", layer);
    layers_.emplace_back(prefix, std::make_unique<TransformerLayer>(layers, parameters, prefix, parallel, recompute_));
  }
  const char* prefix = std::holds_alternative<ClipConfig>(config) ? "conv1." : "embedder.";
  if (is_first_stage()) embedder_.emplace(parameters, prefix, Split::Columns, parallel);
}

Encoder::~Encoder() = default;

at::Tensor Encoder::embed(const at::Tensor& values, const Extents& items) const {
  const Embedder embedder = {parameters_, parallel_, embedder_.value()};
  const auto embed = [&](const auto& config) {
    check_items(config, items);
    return embed_as(config, embedder, values, items);
  };
  return std::visit(embed, config_);
}

at::Tensor Encoder::run_layers(at::Tensor x, const Extents& items) const {
  std::visit([&](const auto& config) { check_items(config, items); }, config_);
  const PackedSequences sequences = sequences_of(config_, items, x.device());
  Residual stream(std::move(x));
  for (const auto& [prefix, layer] : layers_) {
    parameters_.await(prefix);
    // Copied, because backward may run the layer again after the caller's sequences are gone.
    const auto add_branches = [layer = layer.get(), sequences](Residual& to, Result output) {
      layer->add_to(to, sequences, output);
    };
    add_layer(stream, add_branches, recompute_.full, parameters_.trains());
  }
  return stream.value();
}

at::Tensor Encoder::features(const at::Tensor& x, const Extents& items) const {
  const auto features = [&](const auto& config) {
    check_items(config, items);
    return features_as(config, parameters_, x, items);
  };
  return std::visit(features, config_);
}

// --- the projector

Projector::Projector(const ProjectorConfig& config, const Parameters& parameters, const Parallel& parallel)
    : parameters_(parameters), parallel_(parallel),
      first_(parameters, config.kind == ProjectorKind::Affine ? "encoder." : "encoder.linear_fc1.", Split::Columns,
             parallel) {
  BRAID_CHECK(!parallel.sequence_parallel, "every tp rank of the projector has all tokens");
  if (config.kind != ProjectorKind::Affine) second_.emplace(parameters, "encoder.linear_fc2.", Split::Rows, parallel);
}

at::Tensor Projector::forward(const at::Tensor& x) const {
  parameters_.await("encoder.");
  return second_ ? (*second_)(squared_relu(first_(x))) : gather_features(first_(x), parallel_);
}

// --- an encoder with its projector

namespace {

// The statistics by which the pixels are normalised; those named "none" if the encoder does it itself.
const PixelStats& pixel_stats_of(const EncoderConfig& encoder) {
  const auto* radio = std::get_if<RadioConfig>(&encoder.model);
  const std::string name = radio && radio->normalize_pixels ? "none" : encoder.pixel_stats;
  const auto stats = std::ranges::find(all_pixel_stats(), name, &PixelStats::name);
  BRAID_CHECK(stats != all_pixel_stats().end(), "no pixel statistics are called {}", name);
  return *stats;
}

}  // namespace

EncoderStage::EncoderStage(const EncoderConfig& config, const Parameters& encoder, const Parameters* projector,
                           const Parallel& parallel, const StagePosition& position, const RecomputeConfig& recompute)
    : features_(features_of(config.model)),
      pixel_shuffle_(config.pixel_shuffle && !std::holds_alternative<AudioConfig>(config.model)), parameters_(encoder),
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
