// A build without libpng.
#include "data/image/codecs.h"

namespace braid {

Image decode_png(Bytes, PixelSize) { throw_missing_library(ImageFormat::Png, "libpng"); }

}  // namespace braid
