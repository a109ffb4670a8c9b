// The RADIO vision transformer: one pipeline stage of it, on this rank's share of the grid.
//
//   x = embed(patches, images)        first stage
//   x = run_layers(x, images)         every stage
//   features(x, images)               last stage
//
// Images of any sizes lie end to end. P counts their patches; T = P + class_tokens * images, since each image has its
// leading class tokens from embed to features. Every tp rank holds all T tokens (no sequence parallelism here).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/encoder_configs.h"
#include "models/encoder_layers.h"
#include "nn/config.h"
#include "nn/linear.h"
#include "nn/parallel.h"
#include "nn/parameters.h"
#include "ops/vision.h"

namespace braid {

struct ImageSize {
  std::int64_t height = 0, width = 0;  // pixels
};

// Throws a ConfigError that names every image whose sides are not multiples of the patch; `where`: the source of the
// images.
std::vector<PatchGrid> patch_grids(const std::vector<ImageSize>& images, int patch, const std::string& where = "");

// Patches row by row, each as (channel, y, x).   pixels: [B, C, H, W] -> [B * H / patch * W / patch, C * patch * patch]
at::Tensor patchify(const at::Tensor& pixels, int patch);

class Radio {
 public:
  // `parameters` and `parallel` must outlive the model.
  Radio(const RadioConfig& config, const Parameters& parameters, const Parallel& parallel, int stage, int pp,
        const RecomputeConfig& recompute = {});

  bool is_first_stage() const { return stage_ == 0; }
  bool is_last_stage() const { return stage_ == pp_ - 1; }

  // Patches may have any float dtype; if the model normalises pixels, it does so before it converts them to its
  // weights' dtype.
  at::Tensor embed(const at::Tensor& patches, const std::vector<PatchGrid>& images) const;  // [P, pixels] -> [T, H]
  at::Tensor run_layers(at::Tensor x, const std::vector<PatchGrid>& images) const;          // [T, H] -> [T, H]
  at::Tensor features(const at::Tensor& x, const std::vector<PatchGrid>& images) const;     // [T, H] -> [P, H]

 private:
  at::Tensor normalize(const at::Tensor& patches) const;

  const RadioConfig config_;
  const Parameters& parameters_;
  const Parallel& parallel_;
  const int stage_, pp_;
  const EncoderLayers layers_;
  std::optional<Linear> embedder_;  // on the first stage
};

}  // namespace braid
