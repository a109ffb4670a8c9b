// The transformer layers that every encoder has between its embedding and its features, as data: pre-norm attention
// inside each image or clip, then an MLP, all with biases. No libtorch here.
#pragma once

#include <string>
#include <vector>

#include "models/checks.h"
#include "plan/param_spec.h"
#include "plan/topology.h"

namespace braid {

struct EncoderLayersConfig {
  int hidden = 64, layers = 2, heads = 4, ffn = 256;
  double norm_eps = 1e-5;
  double init_std = 0.02;
  std::string gelu = "erf";  // erf | tanh | quick
  bool qkv_bias = true;
  bool layer_scale = false;  // a factor per channel on each residual branch
};

// Their parameters, "decoder.layers.<n>....", in layer order; stages are those of even_stages().
void add_layers(const EncoderLayersConfig& config, int pp, std::vector<ParamSpec>& specs);

// "<name>.weight" and "<name>.bias".
void add_layer_norm(const std::string& name, int width, int stage, std::vector<ParamSpec>& specs);

// Problems with the sizes and, if there are none, with how they split. `model`: its name in messages.
void check_layer_sizes(const EncoderLayersConfig& config, Checks& checks);
void check_layer_splits(const EncoderLayersConfig& config, const LayoutSizes& layout, const char* model,
                        Checks& checks);

}  // namespace braid
