// WebP: a RIFF container. A simple file is one VP8 (lossy) or VP8L (lossless) chunk. An extended one begins with VP8X,
// which has the size of the canvas; the picture or the frames of an animation (ANMF) and EXIF are chunks after it.
#include "data/image/format_headers.h"

namespace braid {
namespace {

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

}  // namespace

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

}  // namespace braid
