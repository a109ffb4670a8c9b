// Format, size and orientation of a stored picture, without decoding it. JPEG markers, PNG chunks and WebP chunks are
// visited by their lengths, so only a few bytes of a large file are looked at.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "data/image/format.h"

namespace braid {

// Larger pictures are refused before anything is allocated. The default is also the largest that Pillow opens.
inline constexpr std::int64_t kMostPixels = 178'956'970;

// `bytes`: the whole file; `name`: for messages. A DataError if this is no picture, or one of too many pixels.
// decode() calls it first, so both agree on size and orientation of every file.
ImageHeader read_header(std::span<const std::uint8_t> bytes, std::string_view name,
                        std::int64_t most_pixels = kMostPixels);

}  // namespace braid
