// WebP through libwebp. Only the VP8 or VP8L data is passed to it: alpha, which is a chunk of its own, is not wanted.
#include <webp/decode.h>

#include <cstring>
#include <new>

#include "data/image/formats.h"

namespace braid {

Image decode_webp(Bytes bytes) {
  const WebpFrame frame = webp_frame(bytes);
  Image image(frame.header.stored);
  // A frame of an animation may be smaller than the canvas, which is black where nothing is drawn.
  if (frame.size != frame.header.stored) std::memset(image.pixels().data(), 0, image.byte_count());

  WebPDecoderConfig config;
  BRAID_CHECK(WebPInitDecoderConfig(&config), "libwebp has another version than its headers");
  config.output.colorspace = MODE_RGB;
  config.output.is_external_memory = 1;
  const std::size_t begin = image.row_bytes() * frame.top + std::size_t{3} * frame.left;
  config.output.u.RGBA = {.rgba = image.pixels().data() + begin,
                          .stride = static_cast<int>(image.row_bytes()),
                          .size = image.byte_count() - begin};
  const VP8StatusCode status = WebPDecode(frame.bitstream.data(), frame.bitstream.size(), &config);
  if (status == VP8_STATUS_NOT_ENOUGH_DATA || status == VP8_STATUS_SUSPENDED)
    throw DataError("the WebP data ends early");
  if (status == VP8_STATUS_OUT_OF_MEMORY) throw std::bad_alloc();
  if (status != VP8_STATUS_OK)
    throw DataError(fmt::format("damaged WebP: status {} of libwebp", static_cast<int>(status)));
  if (PixelSize{config.output.width, config.output.height} != frame.size)
    throw DataError("damaged WebP: two different sizes");
  return image;
}

}  // namespace braid
