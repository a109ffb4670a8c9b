// JPEG: a sequence of markers, most with a length. The size is in the frame header (SOF), EXIF in APP1; both precede
// the first scan (SOS).
#include <optional>

#include "data/image/format_headers.h"

namespace braid {
namespace {

constexpr std::uint32_t kTem = 0x01, kRst0 = 0xd0, kSoi = 0xd8, kEoi = 0xd9, kSos = 0xda, kApp1 = 0xe1;

bool is_frame(std::uint32_t marker) {  // SOF0 to SOF15; DHT, JPG and DAC lie among them
  return marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
}

// Moves `at` behind the next marker. Bytes before it and fill bytes are skipped, as decoders do.
std::uint32_t next_marker(Bytes bytes, std::size_t& at) {
  for (;;) {
    while (big_endian(bytes, at, 1) != 0xff) ++at;
    while (big_endian(bytes, at, 1) == 0xff) ++at;
    const std::uint32_t marker = bytes[at++];
    if (marker != 0) return marker;
  }
}

PixelSize frame_size(std::uint32_t marker, Bytes segment) {
  const std::uint32_t precision = big_endian(segment, 0, 1), components = big_endian(segment, 5, 1);
  const bool is_coded_as_usual = marker <= 0xc2 || marker == 0xc9 || marker == 0xca;  // sequential or progressive
  if (!is_coded_as_usual || precision != 8)
    throw DataError(fmt::format("JPEG of {} bits in coding process {} is not supported", precision, marker - 0xc0));
  if (components != 1 && components != 3 && components != 4)
    throw DataError(fmt::format("JPEG of {} components is not supported", components));
  return {static_cast<int>(big_endian(segment, 3, 2)), static_cast<int>(big_endian(segment, 1, 2))};
}

}  // namespace

bool is_jpeg(Bytes bytes) { return has_text(bytes, 0, "\xff\xd8\xff"); }

ImageHeader jpeg_header(Bytes bytes) {
  std::optional<PixelSize> size;
  std::optional<int> orientation;
  for (std::size_t at = 2;;) {
    const std::uint32_t marker = next_marker(bytes, at);
    if (marker == kTem || (marker >= kRst0 && marker < kSoi)) continue;  // these have no length
    if (marker == kSos || marker == kEoi) break;
    const std::uint32_t length = big_endian(bytes, at, 2);
    if (length < 2) throw DataError(fmt::format("JPEG segment of invalid length at byte {}", at));
    const Bytes segment = slice(bytes, at + 2, length - 2);
    if (is_frame(marker) && !size) size = frame_size(marker, segment);
    if (marker == kApp1 && !orientation && has_text(segment, 0, {"Exif\0\0", 6}))
      orientation = exif_orientation(segment);
    at += length;
  }
  if (!size) throw DataError("JPEG without a frame header");
  return {.format = ImageFormat::Jpeg, .stored = *size, .orientation = orientation.value_or(1)};
}

}  // namespace braid
