// An audio encoder like Whisper's, as data. No libtorch here.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "models/encoder_layers_config.h"
#include "plan/param_spec.h"
#include "plan/topology.h"

namespace braid {

struct AudioConfig {
  int mels = 80;  // channels of a frame
  int hidden = 64, layers = 2, heads = 4, ffn = 256;
  int stack = 2;  // encoded frames, of two input frames each, that form one token's features
  double norm_eps = 1e-5;
  double init_std = 0.02;

  int frames_per_token() const { return 2 * stack; }  // input frames
  int feature_width() const { return stack * hidden; }
};

void describe(Fields& fields, AudioConfig& config);
EncoderLayersConfig layers_of(const AudioConfig& config);
std::vector<ParamSpec> declare_parameters(const AudioConfig& config, int pp = 1);
std::vector<Problem> validate(const AudioConfig& config, const LayoutSizes& layout, const std::string& where);

}  // namespace braid
