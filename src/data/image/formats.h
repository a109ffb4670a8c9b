// The single formats, for formats.cpp: reading numbers in untrusted bytes, headers, decoders.
// Each function throws a DataError without a file's name.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include "base/error.h"
#include "data/image/decode.h"

namespace braid {

using Bytes = std::span<const std::uint8_t>;

// Reading past the end is a DataError.
inline Bytes slice(Bytes bytes, std::size_t offset, std::size_t count) {
  if (offset > bytes.size() || count > bytes.size() - offset)
    throw DataError(fmt::format("the file ends early, after {} bytes", bytes.size()));
  return bytes.subspan(offset, count);
}

inline std::uint32_t big_endian(Bytes bytes, std::size_t offset, std::size_t count) {
  std::uint32_t value = 0;
  for (const std::uint8_t byte : slice(bytes, offset, count)) value = value << 8 | byte;
  return value;
}

inline std::uint32_t little_endian(Bytes bytes, std::size_t offset, std::size_t count) {
  const Bytes part = slice(bytes, offset, count);
  std::uint32_t value = 0;
  for (std::size_t i = count; i-- > 0;) value = value << 8 | part[i];
  return value;
}

inline bool has_text(Bytes bytes, std::size_t offset, std::string_view text) {
  return offset <= bytes.size() && text.size() <= bytes.size() - offset &&
         std::memcmp(bytes.data() + offset, text.data(), text.size()) == 0;
}

bool is_jpeg(Bytes bytes);
bool is_png(Bytes bytes);
bool is_webp(Bytes bytes);

ImageHeader jpeg_header(Bytes bytes);
ImageHeader png_header(Bytes bytes);

// A WebP file holds one image, or an animation of which only the first frame is of interest.
struct WebpFrame {
  ImageHeader header{};
  Bytes bitstream{};  // the VP8 or VP8L data; alpha is stored elsewhere
  PixelSize size{};   // of the bitstream
  int left = 0, top = 0;
};
WebpFrame webp_frame(Bytes bytes);

// From a TIFF structure, with or without the text "Exif" before it; 1 if it is damaged or has no valid orientation.
int exif_orientation(Bytes exif);

// The decoders return the stored pixels, without orientation. Without its library, a decoder throws a ConfigError.
Image decode_jpeg(Bytes bytes, PixelSize stored, std::optional<PixelSize> scale_for);
Image decode_png(Bytes bytes, PixelSize stored);
Image decode_webp(Bytes bytes);
[[noreturn]] void throw_missing_library(ImageFormat format, const char* library);

}  // namespace braid
