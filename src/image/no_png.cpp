// A build without libpng.
#include "image/codecs.h"

namespace braid {

Image decode_png(Bytes, PixelSize) { throw_missing_library(ImageFormat::Png, "libpng"); }

}  // namespace braid
