// The orientation in an EXIF block, which is a TIFF file: byte order, offset of a directory, 12 bytes per entry.
#include "data/image/format_headers.h"

namespace braid {
namespace {

constexpr std::uint32_t kOrientationTag = 0x0112, kByte = 1, kShort = 3, kLong = 4;

int orientation_of(Bytes tiff, std::uint32_t (*number)(Bytes, std::size_t, std::size_t)) {
  const std::size_t directory = number(tiff, 4, 4);
  const std::uint32_t entries = number(tiff, directory, 2);
  for (std::uint32_t i = 0; i < entries; ++i) {
    const std::size_t entry = directory + 2 + std::size_t{12} * i;
    if (number(tiff, entry, 2) != kOrientationTag) continue;
    const std::uint32_t type = number(tiff, entry + 2, 2);
    if (type != kByte && type != kShort && type != kLong) return 1;
    const std::uint32_t value = number(tiff, entry + 8, type == kByte ? 1 : type == kShort ? 2 : 4);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

}  // namespace

int exif_orientation(Bytes exif) {
  constexpr std::string_view kPrefix("Exif\0\0", 6);
  while (has_text(exif, 0, kPrefix)) exif = exif.subspan(kPrefix.size());  // some writers of WebP repeat it
  try {
    if (has_text(exif, 0, {"II*\0", 4})) return orientation_of(exif, little_endian);
    if (has_text(exif, 0, {"MM\0*", 4})) return orientation_of(exif, big_endian);
  } catch (const DataError&) {  // damaged metadata does not make the picture unusable
  }
  return 1;
}

}  // namespace braid
