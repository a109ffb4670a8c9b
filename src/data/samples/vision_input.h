// What the encoders of a model expect, as far as data needs to know it.
#pragma once

#include <optional>
#include <string>

namespace braid {

// An encoder's name, and the token that its embeddings replace.
struct MediaToken {
  std::string encoder;
  int id;
};

struct VisionInput {
  std::string encoder{};        // its name
  int patch = 16;               // pixels per side
  bool pixel_shuffle = true;    // 2 x 2 patches become one embedding
  std::optional<int> square{};  // patches per side, for encoders with one size
  std::string token{};          // that marks embeddings in the text
  int token_id = 0;
  std::string token_id_key{};  // the recipe key that sets it, for messages
};

}  // namespace braid
