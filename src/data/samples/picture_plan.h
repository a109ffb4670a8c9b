// How large the pictures of a sample become and how they are cut, from their sizes alone: the language model's side
// needs no pixels.
#pragma once

#include <vector>

#include "data/image/header.h"
#include "data/image/patches.h"
#include "data/samples/data_config.h"
#include "data/samples/vision_input.h"

namespace braid {

// One input of the encoder: a picture, or a tile of it.
struct MediaPlan {
  std::size_t picture = 0;  // in Conversation::pictures
  PixelSize resized{};      // of the whole picture
  int tile_column = 0, tile_row = 0;
  CellGrid patches{};  // of this input
  std::int64_t embeddings = 0;
};

// By picture: its inputs. `room`: embeddings that fit into the sequence; more may result if even the smallest sizes do
// not fit.
std::vector<std::vector<MediaPlan>> plan_pictures(const std::vector<PixelSize>& pictures, std::int64_t room,
                                                  const PictureConfig& config, const VisionInput& vision);

}  // namespace braid
