// Whole models a user can name: sizes of the language model, the vision encoder and the projector, and how images
// reach them. No libtorch here.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/hybrid_lm_config.h"
#include "models/projector_config.h"
#include "models/radio_config.h"

namespace braid {

struct Provider {
  std::string name{};
  HybridLmConfig language{};
  RadioConfig vision{};
  ProjectorConfig projector{};

  std::string image_token = "<image>";
  int mock_image_token_id = 511;  // stands for image_token where there is no tokenizer
  int sequence_length = 8192;
  bool pixel_shuffle = true;  // 2 x 2 patches become one token
  bool dynamic_resolution = true;
  bool tiling = false, thumbnail = false;
};

const std::vector<Provider>& providers();

// ConfigError with the nearest name when there is none of this one.
const Provider& provider(std::string_view name);

// The id that stands for an image token in the text: the tokenizer's, or without one the mock default. ConfigError when
// the vocabulary has no such id.
int image_token_id(const Provider& provider, std::optional<int> from_tokenizer);

// Why the model makes no sense or cannot run in these layouts. The projector lives where the vision encoder ends.
std::vector<Problem> validate(const Provider& provider, const LayoutSizes& language, const LayoutSizes& encoder);

// Each in the file of its name.
Provider nemotron_vlm_20l();
Provider nemotron_vlm_54l();
Provider tiny_vlm();

}  // namespace braid
