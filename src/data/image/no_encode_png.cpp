// A build without libpng.
#include "data/image/codecs.h"
#include "data/image/encode_png.h"

namespace braid {

std::string encode_png(const Image&) { throw_missing_library(ImageFormat::Png, "libpng"); }

}  // namespace braid
