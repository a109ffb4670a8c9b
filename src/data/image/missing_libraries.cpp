// What a build without the library of a format does: it refuses such images.
#include "data/image/decode.h"
#include "data/image/formats.h"

namespace braid {

void throw_missing_library(ImageFormat format, const char* library) {
  throw ConfigError(
      {fmt::format("this build of braid cannot decode {}: it was compiled without {}", name_of(format), library), "",
       fmt::format("install the headers of {} and build again", library)});
}

#ifndef BRAID_HAS_JPEG
Image decode_jpeg(Bytes, PixelSize, std::optional<PixelSize>) {
  throw_missing_library(ImageFormat::Jpeg, "libjpeg-turbo");
}
#endif

#ifndef BRAID_HAS_PNG
Image decode_png(Bytes, PixelSize) { throw_missing_library(ImageFormat::Png, "libpng"); }
std::string encode_png(const Image&) { throw_missing_library(ImageFormat::Png, "libpng"); }
#endif

#ifndef BRAID_HAS_WEBP
Image decode_webp(Bytes) { throw_missing_library(ImageFormat::Webp, "libwebp"); }
#endif

}  // namespace braid
