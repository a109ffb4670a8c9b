// A CLIP vision transformer as data: square images of one size. No libtorch here.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "models/encoder_layers_config.h"
#include "plan/param_spec.h"
#include "plan/topology.h"

namespace braid {

struct ClipConfig {
  int hidden = 64, layers = 3, heads = 4, ffn = 256;
  int feature_layer = -2;  // the layer that outputs the features: -1 the last one, -2 the one before, n the n-th
  int image_side = 56, patch = 14, channels = 3;  // in pixels
  double norm_eps = 1e-5;
  double init_std = 0.02;
  std::string gelu = "quick";  // quick | erf | tanh

  int patch_side() const { return image_side / patch; }  // of an image, in patches
};

void describe(Fields& fields, ClipConfig& config);
EncoderLayersConfig layers_of(
    const ClipConfig& config);  // up to feature_layer; later layers are neither declared nor run
std::vector<ParamSpec> declare_parameters(const ClipConfig& config, int pp = 1);
std::vector<Problem> validate(const ClipConfig& config, const LayoutSizes& layout, const std::string& where);

}  // namespace braid
