#include "data/image/decode.h"

#include "data/image/formats.h"

namespace braid {
namespace {

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
