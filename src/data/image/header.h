// Format, size and orientation of a stored image, without decoding it. JPEG markers, PNG chunks and WebP chunks are
// visited by their lengths, so only a few bytes of a large file are looked at.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "data/image/image.h"

namespace braid {

enum class ImageFormat { Jpeg, Png, Webp };

inline const char* name_of(ImageFormat format) {
  constexpr const char* kNames[] = {"JPEG", "PNG", "WebP"};
  return kNames[static_cast<int>(format)];
}

struct ImageHeader {
  ImageFormat format{};
  PixelSize stored{};   // as encoded
  int orientation = 1;  // of EXIF: 1 to 8; 1 if the file has none or an invalid one

  // The size after `orientation` is applied: 5 to 8 exchange width and height.
  PixelSize oriented() const { return orientation < 5 ? stored : PixelSize{stored.height, stored.width}; }
};

// Larger images are refused before anything is allocated. The default is also the largest that Pillow opens.
inline constexpr std::int64_t kMostPixels = 178'956'970;

// `bytes`: the whole file; `name`: for messages. Throws DataError if it is not an image or has too many pixels.
// decode() calls it first, so both agree on size and orientation of every file.
ImageHeader read_header(std::span<const std::uint8_t> bytes, std::string_view name,
                        std::int64_t most_pixels = kMostPixels);

}  // namespace braid
