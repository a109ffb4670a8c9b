// JPEG is a sequence of markers, most with a length. The size is in the frame header (SOF), EXIF in APP1; both precede
// the first scan (SOS).
// PNG is a signature, then chunks of length, type, data and checksum. IHDR comes first; eXIf may be anywhere.
// WebP is a RIFF container. A simple file is one VP8 (lossy) or VP8L (lossless) chunk. An extended one begins with
// VP8X, which has the size of the canvas; the image or the frames of an animation (ANMF) and EXIF are chunks after it.
// EXIF is a TIFF file: byte order, offset of a directory, 12 bytes per entry.
#include "data/image/formats.h"

#include <algorithm>
#include <optional>
#include <string_view>

namespace braid {
namespace {

// EXIF.
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

// JPEG.
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

// PNG.
constexpr std::size_t kSignature = 8, kChunkFrame = 12;
constexpr std::uint32_t kLongestSide = 1'000'000;  // libpng's limit; sides in the other formats are below 2^24

// What follows the image's data may be damaged: decoders do not read it.
int png_orientation(Bytes bytes) {
  for (std::size_t at = kSignature; at + kChunkFrame <= bytes.size();) {
    const std::size_t length = big_endian(bytes, at, 4);
    if (length > bytes.size() - at - kChunkFrame) break;
    if (has_text(bytes, at + 4, "eXIf")) return exif_orientation(bytes.subspan(at + 8, length));
    at += kChunkFrame + length;
  }
  return 1;
}

// WebP.
constexpr std::size_t kChunkHeader = 8;
constexpr std::uint32_t kExifFlag = 0x08;

struct Chunk {
  Bytes data{};
  std::size_t begin = 0, end = 0;  // `end` includes the padding to an even size
};

Chunk chunk_at(Bytes file, std::size_t begin) {
  const std::size_t length = little_endian(file, begin + 4, 4);
  return {slice(file, begin + kChunkHeader, length), begin, begin + kChunkHeader + length + length % 2};
}

PixelSize lossy_size(Bytes data) {
  const std::uint32_t tag = little_endian(data, 0, 3);
  if (tag % 2 != 0 || !has_text(data, 3, "\x9d\x01\x2a")) throw DataError("WebP whose VP8 data is not a key frame");
  const auto side = [&](std::size_t offset) { return static_cast<int>(little_endian(data, offset, 2) & 0x3fff); };
  return {side(6), side(8)};
}

PixelSize lossless_size(Bytes data) {
  if (little_endian(data, 0, 1) != 0x2f) throw DataError("WebP whose VP8L data has no signature");
  const std::uint32_t bits = little_endian(data, 1, 4);
  return {static_cast<int>(bits & 0x3fff) + 1, static_cast<int>(bits >> 14 & 0x3fff) + 1};
}

int size_at(Bytes data, std::size_t offset) { return static_cast<int>(little_endian(data, offset, 3)) + 1; }

bool take_bitstream(Bytes file, const Chunk& chunk, WebpFrame& frame) {
  const bool is_lossless = has_text(file, chunk.begin, "VP8L");
  if (!is_lossless && !has_text(file, chunk.begin, "VP8 ")) return false;
  frame.bitstream = chunk.data;
  frame.size = is_lossless ? lossless_size(chunk.data) : lossy_size(chunk.data);
  return true;
}

// A frame of an animation: position, size, duration and flags, then chunks as in a file.
void take_first_frame(Bytes data, WebpFrame& frame) {
  frame.left = 2 * static_cast<int>(little_endian(data, 0, 3));
  frame.top = 2 * static_cast<int>(little_endian(data, 3, 3));
  for (std::size_t at = 16; at < data.size();) {
    const Chunk chunk = chunk_at(data, at);
    if (take_bitstream(data, chunk, frame)) return;
    at = chunk.end;
  }
  throw DataError("WebP animation whose first frame has no picture");
}

void check_frame(const WebpFrame& frame) {
  const PixelSize canvas = frame.header.stored;
  if (frame.left + frame.size.width > canvas.width || frame.top + frame.size.height > canvas.height)
    throw DataError(fmt::format("WebP picture of {} x {} at ({}, {}), outside of the canvas of {} x {}",
                                frame.size.width, frame.size.height, frame.left, frame.top, canvas.width,
                                canvas.height));
}

// All formats.
// An image format that Braid does not read; empty: unknown.
std::string_view unread_format(Bytes bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), std::min<std::size_t>(bytes.size(), 16));
  if (text.starts_with("GIF8")) return "a GIF";
  if (text.starts_with("BM")) return "a BMP";
  if (text.starts_with(std::string_view("II*\0", 4)) || text.starts_with(std::string_view("MM\0*", 4))) return "a TIFF";
  if (text.size() < 12 || text.substr(4, 4) != "ftyp") return "";
  const std::string_view brand = text.substr(8, 4);
  return brand.starts_with("avi") ? "an AVIF" : brand.starts_with("hei") || brand == "mif1" ? "a HEIF" : "";
}

ImageHeader header_of(Bytes bytes) {
  if (is_jpeg(bytes)) return jpeg_header(bytes);
  if (is_png(bytes)) return png_header(bytes);
  if (is_webp(bytes)) return webp_frame(bytes).header;
  if (bytes.empty()) throw DataError("the file is empty");
  const std::string_view other = unread_format(bytes);
  throw DataError(fmt::format("this is not a JPEG, PNG or WebP file{}{}", other.empty() ? "" : ", but ", other));
}

void check_size(PixelSize size, std::int64_t most_pixels) {
  if (size.width < 1 || size.height < 1) throw DataError(fmt::format("invalid size {} x {}", size.width, size.height));
  if (size.pixels() > most_pixels)
    throw DataError(fmt::format("{} x {} pixels are more than the limit of {} pixels; scale the picture down",
                                size.width, size.height, most_pixels));
}

Image stored_pixels(Bytes bytes, const ImageHeader& header, const DecodeOptions& options) {
  switch (header.format) {
    case ImageFormat::Jpeg: {
      std::optional<PixelSize> target = options.scale_for;
      if (target && options.orient && header.orientation >= 5) target = PixelSize{target->height, target->width};
      return decode_jpeg(bytes, header.stored, target);
    }
    case ImageFormat::Png:
      return decode_png(bytes, header.stored);
    case ImageFormat::Webp:
      return decode_webp(bytes);
  }
  BRAID_CHECK(false, "format {}", static_cast<int>(header.format));
}

}  // namespace

int exif_orientation(Bytes exif) {
  constexpr std::string_view kPrefix("Exif\0\0", 6);
  while (has_text(exif, 0, kPrefix)) exif = exif.subspan(kPrefix.size());  // some writers of WebP repeat it
  try {
    if (has_text(exif, 0, {"II*\0", 4})) return orientation_of(exif, little_endian);
    if (has_text(exif, 0, {"MM\0*", 4})) return orientation_of(exif, big_endian);
  } catch (const DataError&) {  // damaged metadata does not make the image unusable
  }
  return 1;
}

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

bool is_png(Bytes bytes) { return has_text(bytes, 0, "\x89PNG\r\n\x1a\n"); }

ImageHeader png_header(Bytes bytes) {
  if (big_endian(bytes, 8, 4) != 13 || !has_text(bytes, 12, "IHDR"))
    throw DataError("PNG that does not begin with IHDR");
  const std::uint32_t width = big_endian(bytes, 16, 4), height = big_endian(bytes, 20, 4);
  if (width > kLongestSide || height > kLongestSide)
    throw DataError(fmt::format("{} x {} pixels: a side is longer than {}", width, height, kLongestSide));
  return {.format = ImageFormat::Png,
          .stored = {static_cast<int>(width), static_cast<int>(height)},
          .orientation = png_orientation(bytes)};
}

bool is_webp(Bytes bytes) { return has_text(bytes, 0, "RIFF") && has_text(bytes, 8, "WEBP"); }

WebpFrame webp_frame(Bytes bytes) {
  const Bytes file = slice(bytes, 0, kChunkHeader + std::size_t{little_endian(bytes, 4, 4)});
  WebpFrame frame{.header = {.format = ImageFormat::Webp}};
  const Chunk first = chunk_at(file, 12);
  if (take_bitstream(file, first, frame)) {
    frame.header.stored = frame.size;
    return frame;
  }
  if (!has_text(file, first.begin, "VP8X")) throw DataError("WebP that begins with an unknown chunk");
  frame.header.stored = {size_at(first.data, 4), size_at(first.data, 7)};
  const bool has_exif = (little_endian(first.data, 0, 1) & kExifFlag) != 0;
  for (std::size_t at = first.end; at < file.size();) {
    const Chunk chunk = chunk_at(file, at);
    if (frame.bitstream.empty() && !take_bitstream(file, chunk, frame) && has_text(file, at, "ANMF"))
      take_first_frame(chunk.data, frame);
    if (has_exif && has_text(file, at, "EXIF")) frame.header.orientation = exif_orientation(chunk.data);
    at = chunk.end;
  }
  if (frame.bitstream.empty()) throw DataError("WebP without a picture");
  check_frame(frame);
  return frame;
}

ImageHeader read_header(Bytes bytes, std::string_view name, std::int64_t most_pixels) {
  try {
    const ImageHeader header = header_of(bytes);
    check_size(header.stored, most_pixels);
    return header;
  } catch (const DataError& e) {
    throw DataError(fmt::format("{}: {}", name, e.what()));
  }
}

Image decode(Bytes bytes, std::string_view name, const DecodeOptions& options) {
  const ImageHeader header = read_header(bytes, name, options.most_pixels);
  try {
    Image image = stored_pixels(bytes, header, options);
    return options.orient ? oriented(std::move(image), header.orientation) : std::move(image);
  } catch (const DataError& e) {
    throw DataError(fmt::format("{}: {}", name, e.what()));
  }
}

}  // namespace braid
