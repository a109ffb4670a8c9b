// Which keys give a model its sizes. The small providers are models for tests: their sizes suit only their own width,
// so a recipe that sets another `hidden` must set these keys, too. No libtorch here.
#pragma once

#include <string>
#include <vector>

#include "models/providers.h"

namespace braid {

bool is_toy(const Provider& provider);

// Relative to the model's section, without `hidden`: "vocab"; of an encoder, "encoder.layers" and "projector.hidden".
std::vector<std::string> size_keys(const LanguageConfig& config);
std::vector<std::string> size_keys(const EncoderConfig& config);

}  // namespace braid
