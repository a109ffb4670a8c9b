// The encoders and their projectors as data: sizes, parameters, and which layouts they support. No libtorch here.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "plan/param_spec.h"
#include "plan/topology.h"

namespace braid {

// --- the transformer layers that every encoder has between its embedding and its features: pre-norm attention inside
// each image or clip, then an MLP, all with biases

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

class Checks;
// Problems with the sizes and, if there are none, with how they split. `model`: its name in messages.
void check_layer_sizes(const EncoderLayersConfig& config, Checks& checks);
void check_layer_splits(const EncoderLayersConfig& config, const LayoutSizes& layout, const char* model,
                        Checks& checks);

// --- RADIO

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

// --- CLIP: square images of one size

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

// --- an audio encoder like Whisper's

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

// --- the projector after an encoder

struct ProjectorConfig {
  std::string kind = "affine";                  // affine | mlp
  int input = 256, hidden = 1024, output = 64;  // hidden: of the mlp
  double init_std = 0.02;
};

void describe(Fields& fields, ProjectorConfig& config);
// On the last of the encoder's `stages`.
std::vector<ParamSpec> declare_parameters(const ProjectorConfig& config, int stages = 1);
std::vector<Problem> validate(const ProjectorConfig& config, const LayoutSizes& layout, const std::string& where);

}  // namespace braid
