// How large the pictures of a sample become and how they are cut, from their sizes alone: the language model's side
// needs no pixels. A picture is a stored file; as decoded pixels it is an Image (data/image).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/image/decode.h"
#include "data/image/patches.h"
#include "data/samples/data_config.h"

namespace braid {

// An encoder's name, and the token that its embeddings replace.
struct MediaToken {
  std::string encoder;
  int id;
};

// What the encoder of pictures expects.
struct VisionInput {
  std::string encoder{};        // its name
  int patch = 16;               // pixels per side
  bool pixel_shuffle = true;    // 2 x 2 patches become one embedding
  std::optional<int> square{};  // patches per side, for encoders with one size
  std::string token{};          // that marks embeddings in the text
  int token_id = 0;
  std::string token_id_key{};  // the recipe key that sets it, for messages
};

// One input of the encoder: a picture, or a tile of it.
struct MediaPlan {
  std::size_t picture = 0;  // in Conversation::pictures
  PixelSize resized{};      // of the whole picture
  int tile_column = 0, tile_row = 0;
  CellGrid patches{};  // of this input
  std::int64_t embeddings = 0;
};

std::int64_t patches_of(std::span<const MediaPlan> inputs);
std::int64_t embeddings_of(std::span<const MediaPlan> inputs);
// The inputs in groups, of those that come from one picture.
std::vector<std::span<const MediaPlan>> by_picture(std::span<const MediaPlan> inputs);

// The inputs of each picture. `room`: embeddings that fit into the sequence; more may result if even the smallest sizes
// do not fit.
std::vector<std::vector<MediaPlan>> plan_pictures(const std::vector<PixelSize>& pictures, std::int64_t room,
                                                  const PictureConfig& config, const VisionInput& vision);

}  // namespace braid
