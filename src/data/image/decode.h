// Stored images (JPEG, PNG, WebP) to RGB pixels. The result is that of Pillow's Image.open(file).convert("RGB"), byte
// for byte: alpha is dropped without blending, palettes are expanded, 16-bit greys are clipped to 255 and other 16-bit
// samples keep their upper byte, CMYK is converted without a colour profile, an animation gives its first frame.
//
// A JPEG decoder continues after damaged entropy-coded data, in Pillow too: such files give an image. Files that end
// early, invalid headers and damaged PNG and WebP data are DataErrors.
#pragma once

#include <optional>
#include <string>

#include "data/image/header.h"

namespace braid {

struct DecodeOptions {
  // Apply the EXIF orientation. Energon's `pil` decoding does not: set it to false for the same pixels.
  bool orient = true;
  // The size that the image will be resized to (after orientation). A JPEG is then decoded at 1/2, 1/4 or 1/8 of its
  // size if that is not smaller: much faster, but not the result of decoding in full and resizing.
  std::optional<PixelSize> scale_for{};
  std::int64_t most_pixels = kMostPixels;
};

// `bytes`: the whole file; `name`: for messages.
Image decode(std::span<const std::uint8_t> bytes, std::string_view name, const DecodeOptions& options = {});

// The image as a PNG file. ConfigError in a build without libpng.
std::string encode_png(const Image& image);

}  // namespace braid
