// The RADIO vision transformer as data. No libtorch here.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "models/encoder_layers_config.h"
#include "plan/param_spec.h"
#include "plan/topology.h"

namespace braid {

struct RadioConfig {
  int hidden = 64, layers = 2, heads = 4, ffn = 256;
  int patch = 16, channels = 3;
  int position_side = 128;  // the position table covers this many patches in each direction
  int class_tokens = 10;    // class and register tokens in front of each image
  double norm_eps = 1e-6;
  double init_std = 0.02;
  std::string gelu = "erf";  // erf | tanh
  bool qkv_bias = true;
  bool layer_scale = false;  // a factor per channel on each residual branch
  bool final_norm = false;
  bool normalize_pixels = false;  // (pixel - mean) / std inside the model, with the buffers below
};

void describe(Fields& fields, RadioConfig& config);
EncoderLayersConfig layers_of(const RadioConfig& config);
std::vector<ParamSpec> declare_parameters(const RadioConfig& config, int pp = 1);
std::vector<Problem> validate(const RadioConfig& config, const LayoutSizes& layout, const std::string& where);

}  // namespace braid
