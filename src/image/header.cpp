#include "image/header.h"

#include "image/format_headers.h"

namespace braid {
namespace {

ImageHeader header_of(Bytes bytes) {
  if (is_jpeg(bytes)) return jpeg_header(bytes);
  if (is_png(bytes)) return png_header(bytes);
  if (is_webp(bytes)) return webp_frame(bytes).header;
  throw DataError(bytes.empty() ? "the file is empty" : "this is not a JPEG, PNG or WebP file");
}

void check_size(PixelSize size, std::int64_t most_pixels) {
  if (size.width < 1 || size.height < 1) throw DataError(fmt::format("invalid size {} x {}", size.width, size.height));
  if (size.pixels() > most_pixels)
    throw DataError(fmt::format("{} x {} pixels are more than the limit of {} pixels; scale the picture down",
                                size.width, size.height, most_pixels));
}

}  // namespace

ImageHeader read_header(Bytes bytes, std::string_view name, std::int64_t most_pixels) {
  try {
    const ImageHeader header = header_of(bytes);
    check_size(header.stored, most_pixels);
    return header;
  } catch (const DataError& e) {
    throw DataError(fmt::format("{}: {}", name, e.what()));
  }
}

}  // namespace braid
