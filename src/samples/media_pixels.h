// The pixels of an encoder's input: decoded, resized and cut into patches.
#pragma once

#include <cstdint>
#include <span>

#include "samples/conversation.h"
#include "samples/data_config.h"
#include "samples/picture_plan.h"

namespace braid {

// Writes the patches of all inputs that one picture becomes, one input after the other, into `rows`, [patches,
// 3 * patch * patch]. DataError if the picture is damaged.
void write_patches(const Picture& picture, std::span<const MediaPlan> inputs, const PictureConfig& config, int patch,
                   std::span<std::uint8_t> rows);

}  // namespace braid
