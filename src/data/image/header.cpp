#include "data/image/header.h"

#include <algorithm>
#include <string_view>

#include "data/image/formats.h"

namespace braid {
namespace {

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
