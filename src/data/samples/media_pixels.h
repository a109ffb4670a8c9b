// The pixels of an encoder's input: decoded, resized and cut into patches.
#pragma once

#include <cstdint>
#include <span>

#include "data/samples/conversation.h"
#include "data/samples/data_config.h"
#include "data/samples/picture_plan.h"

namespace braid {

// The picture at the size at which its inputs are made from it. DataError if it is damaged.
Image decode_for(const Picture& picture, std::span<const MediaPlan> inputs, const PictureConfig& config);

// Writes the patches of all inputs that one picture becomes, one input after the other, into `rows`, [patches,
// 3 * patch * patch].
void write_patches(const Image& decoded, std::span<const MediaPlan> inputs, const PictureConfig& config, int patch,
                   std::span<std::uint8_t> rows);

}  // namespace braid
