// PNG: a signature, then chunks of length, type, data and checksum. IHDR comes first; eXIf may be anywhere.
#include "data/image/format_headers.h"

namespace braid {
namespace {

constexpr std::size_t kSignature = 8, kChunkFrame = 12;
constexpr std::uint32_t kLongestSide = 1'000'000;  // libpng's limit; sides in the other formats are below 2^24

// What follows the picture's data may be damaged: decoders do not read it.
int orientation_of(Bytes bytes) {
  for (std::size_t at = kSignature; at + kChunkFrame <= bytes.size();) {
    const std::size_t length = big_endian(bytes, at, 4);
    if (length > bytes.size() - at - kChunkFrame) break;
    if (has_text(bytes, at + 4, "eXIf")) return exif_orientation(bytes.subspan(at + 8, length));
    at += kChunkFrame + length;
  }
  return 1;
}

}  // namespace

bool is_png(Bytes bytes) { return has_text(bytes, 0, "\x89PNG\r\n\x1a\n"); }

ImageHeader png_header(Bytes bytes) {
  if (big_endian(bytes, 8, 4) != 13 || !has_text(bytes, 12, "IHDR"))
    throw DataError("PNG that does not begin with IHDR");
  const std::uint32_t width = big_endian(bytes, 16, 4), height = big_endian(bytes, 20, 4);
  if (width > kLongestSide || height > kLongestSide)
    throw DataError(fmt::format("{} x {} pixels: a side is longer than {}", width, height, kLongestSide));
  return {.format = ImageFormat::Png,
          .stored = {static_cast<int>(width), static_cast<int>(height)},
          .orientation = orientation_of(bytes)};
}

}  // namespace braid
