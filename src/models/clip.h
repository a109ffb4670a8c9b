// A CLIP vision transformer: one pipeline stage of it, on this rank's share of the grid. Used as Radio is:
//
//   x = embed(patches, images)        first stage
//   x = run_layers(x, images)         every stage
//   features(x, images)               last stage
//
// Images, all of the model's one size, lie end to end. P counts their patches; T = P + images, since each image has a
// leading class token from embed to features. Every tp rank holds all T tokens (no sequence parallelism here).
#pragma once

#include <optional>
#include <vector>

#include "models/encoder_configs.h"
#include "models/encoder_layers.h"
#include "nn/config.h"
#include "nn/linear.h"
#include "nn/parallel.h"
#include "nn/parameters.h"
#include "ops/vision.h"

namespace braid {

class Clip {
 public:
  // `parameters` and `parallel` must outlive the model.
  Clip(const ClipConfig& config, const Parameters& parameters, const Parallel& parallel, int stage, int pp,
       const RecomputeConfig& recompute = {});

  bool is_first_stage() const { return stage_ == 0; }
  bool is_last_stage() const { return stage_ == pp_ - 1; }

  // Images of another size are a DataError. Patches (see patchify()) may have any float dtype.
  at::Tensor embed(const at::Tensor& patches, const std::vector<PatchGrid>& images) const;  // [P, pixels] -> [T, H]
  at::Tensor run_layers(at::Tensor x, const std::vector<PatchGrid>& images) const;          // [T, H] -> [T, H]
  at::Tensor features(const at::Tensor& x, const std::vector<PatchGrid>& images) const;     // [T, H] -> [P, H]

 private:
  const ClipConfig config_;
  const Parameters& parameters_;
  const Parallel& parallel_;
  const int stage_, pp_;
  const EncoderLayers layers_;
  std::optional<Linear> conv1_;  // on the first stage
};

}  // namespace braid
