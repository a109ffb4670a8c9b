// An encoder of images (RADIO, CLIP) or of audio like Whisper's, and its projector: one pipeline stage, on this rank's
// share of the grid.
//
//   x = embed(values, items)          first stage
//   x = run_layers(x, items)          every stage
//   features(x, items)                last stage
//
// Items lie end to end, and attention stays inside each. N counts their patches or frames, T their tokens between embed
// and features (hidden_rows_of()): an image has its class tokens in front of its patches, and two frames form one token
// of a clip, whose positions restart. R counts rows of features: one for each patch, or for `stack` tokens of a clip.
// Every tp rank holds all T tokens (no sequence parallelism here).
#pragma once

#include <ATen/core/Tensor.h>
#include "models/providers.h"
#include "nn/config.h"
#include "nn/linear.h"
#include "nn/parallel.h"
#include "nn/parameters.h"
#include "ops/vision.h"

namespace braid {

// By item: of an image, rows and columns in patches; of an audio clip, frames.
using Extents = std::vector<std::vector<std::int64_t>>;
inline Extents extents_of(const std::vector<PatchGrid>& images) {
  return vector_of<Extents::value_type>(images, [](auto& image) { return std::vector{image.rows, image.columns}; });
}
inline Extents extents_of(const std::vector<std::int64_t>& frames) {
  return vector_of<Extents::value_type>(frames, [](std::int64_t count) { return std::vector{count}; });
}

// Parameters and groups must outlive these classes.
class Encoder {
 public:
  Encoder(const EncoderModel& config, const Parameters& parameters, const Parallel& parallel, int stage, int pp,
          const RecomputeConfig& recompute = {});
  ~Encoder();

  bool is_first_stage() const { return stage_ == 0; }
  bool is_last_stage() const { return stage_ == pp_ - 1; }

  // An image of a size that CLIP does not take, or a clip whose frames do not divide into whole tokens, is a DataError.
  // Values (see patchify()) may have any float dtype; if the model normalises pixels, it does so before it converts
  // them to its weights' dtype.
  at::Tensor embed(const at::Tensor& values, const Extents& items) const;  // [N, values of a patch or frame] -> [T, H]
  at::Tensor run_layers(at::Tensor x, const Extents& items) const;         // [T, H] -> [T, H]
  at::Tensor features(const at::Tensor& x, const Extents& items) const;    // [T, H] -> [R, H or stack * H]

 private:
  class TransformerLayer;

  const EncoderModel config_;
  const Parameters& parameters_;
  const Parallel& parallel_;
  const RecomputeConfig recompute_;
  const int stage_, pp_;
  std::vector<std::pair<std::string, std::unique_ptr<TransformerLayer>>> layers_;  // by prefix of their parameters
  std::optional<Linear> embedder_;                                                 // on the first stage
};

// Maps an encoder's features to embeddings of the language model's width.
class Projector {
 public:
  Projector(const ProjectorConfig& config, const Parameters& parameters, const Parallel& parallel);

  at::Tensor forward(const at::Tensor& x) const;  // [N, input] -> [N, output]

 private:
  const Parameters& parameters_;
  const Parallel& parallel_;
  const Linear first_;
  std::optional<Linear> second_;  // of an MLP
};

struct StagePosition {
  int stage = 0, stages = 1;
  bool is_first() const { return stage == 0; }
  bool is_last() const { return stage == stages - 1; }
};

// A stage of an encoder, with the projector on the last one. A frozen encoder runs without autograd.
class EncoderStage {
 public:
  // `projector`: on the last stage only.
  EncoderStage(const EncoderConfig& config, const Parameters& encoder, const Parameters* projector,
               const Parallel& parallel, const StagePosition& position, const RecomputeConfig& recompute);

  // `x`: on the first stage the items' values ([patches or frames, features], of any dtype), else the output of the
  // previous stage. The last stage returns embeddings for the language model.
  at::Tensor forward(const at::Tensor& x, const Extents& items) const;

 private:
  at::Tensor encode(at::Tensor x, const Extents& items) const;
  at::Tensor input_values(const at::Tensor& x) const;
  at::TensorOptions options() const { return parameters_.entries().front().value.options().requires_grad(false); }

  const int features_;
  const bool pixel_shuffle_;  // of images
  const Parameters& parameters_;
  at::Tensor mean_, std_;  // of pixels: [channels, 1], fp32 or wider
  const Encoder model_;
  std::optional<Projector> projector_;
};

struct ImageSize {
  std::int64_t height = 0, width = 0;  // pixels
};

// Throws a ConfigError that names every image whose sides are not multiples of the patch; `where`: the source of the
// images.
std::vector<PatchGrid> patch_grids(const std::vector<ImageSize>& images, int patch, const std::string& where = "");

// Patches row by row, each as (channel, y, x).   pixels: [B, C, H, W] -> [B * H / patch * W / patch, C * patch * patch]
at::Tensor patchify(const at::Tensor& pixels, int patch);

}  // namespace braid
