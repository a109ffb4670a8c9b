// A build without libwebp.
#include "data/image/codecs.h"

namespace braid {

Image decode_webp(Bytes) { throw_missing_library(ImageFormat::Webp, "libwebp"); }

}  // namespace braid
