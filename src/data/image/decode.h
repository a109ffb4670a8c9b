// Stored images (JPEG, PNG, WebP) to RGB pixels. The result is that of Pillow's Image.open(file).convert("RGB"), byte
// for byte: alpha is dropped without blending, palettes are expanded, 16-bit greys are clipped to 255 and other 16-bit
// samples keep their upper byte, CMYK is converted without a colour profile, an animation gives its first frame.
//
// A JPEG decoder continues after damaged entropy-coded data, in Pillow too: such files give an image. Files that end
// early, invalid headers and damaged PNG and WebP data are DataErrors.
// Format, size and orientation are known without decoding: JPEG markers, PNG chunks and WebP chunks are visited by
// their lengths, so only a few bytes of a large file are looked at.
#pragma once

#include "data/image/image.h"

namespace braid {

using Bytes = std::span<const std::uint8_t>;

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
ImageHeader read_header(Bytes bytes, std::string_view name, std::int64_t most_pixels = kMostPixels);

struct DecodeOptions {
  // Apply the EXIF orientation. Energon's `pil` decoding does not: set it to false for the same pixels.
  bool orient = true;
  // The size that the image will be resized to (after orientation). A JPEG is then decoded at 1/2, 1/4 or 1/8 of its
  // size if that is not smaller: much faster, but not the result of decoding in full and resizing.
  std::optional<PixelSize> scale_for{};
  std::int64_t most_pixels = kMostPixels;
};

// `bytes`: the whole file; `name`: for messages.
Image decode(Bytes bytes, std::string_view name, const DecodeOptions& options = {});

// The image as a PNG file. ConfigError in a build without libpng.
std::string encode_png(const Image& image);

[[noreturn]] void throw_missing_library(ImageFormat format, const char* library);

}  // namespace braid
