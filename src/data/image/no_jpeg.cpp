// A build without libjpeg.
#include "data/image/codecs.h"

namespace braid {

Image decode_jpeg(Bytes, PixelSize, std::optional<PixelSize>) {
  throw_missing_library(ImageFormat::Jpeg, "libjpeg-turbo");
}

}  // namespace braid
