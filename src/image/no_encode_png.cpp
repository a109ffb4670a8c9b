// A build without libpng.
#include "image/codecs.h"
#include "image/encode_png.h"

namespace braid {

std::string encode_png(const Image&) { throw_missing_library(ImageFormat::Png, "libpng"); }

}  // namespace braid
