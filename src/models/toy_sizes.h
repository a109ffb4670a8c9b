// Which keys give a model its sizes. The small providers are models for tests: their sizes suit only their own width,
// so a recipe that sets another `hidden`, or a size that is too large for it, must set these keys, too. No libtorch
// here.
#pragma once

#include <string>
#include <vector>

#include "models/providers.h"

namespace braid {

bool is_toy(const Provider& provider);

// Relative to the model's section, without `hidden`: "vocab"; of an encoder, "encoder.layers" and "projector.hidden".
std::vector<std::string> size_keys(const LanguageConfig& config);
std::vector<std::string> size_keys(const EncoderConfig& config);

// A size that belongs to a wider model, in the same form: "ffn" if it is more than 8 times `hidden`; "heads" if all
// heads together are. Empty if there is none.
std::string key_of_wider_model(const LanguageConfig& config);
std::string key_of_wider_model(const EncoderConfig& config);

}  // namespace braid
