// The fuzz targets of pictures, and what must hold for any bytes: they are refused with a DataError, or the decoded
// picture has the size that the header says. Any other exception and any sanitizer report is a bug.
#pragma once

#include "base/error.h"
#include "data/image/decode.h"

namespace braid::testing {

// Small, so that a header alone cannot make the fuzzer slow.
inline constexpr std::int64_t kFuzzPixels = 1 << 16;

// Whether the bytes begin like a picture.
inline bool fuzz_image_header(Bytes bytes) {
  try {
    const ImageHeader header = read_header(bytes, "input", kFuzzPixels);
    BRAID_CHECK(header.orientation >= 1 && header.orientation <= 8, "orientation {}", header.orientation);
    BRAID_CHECK(header.stored.pixels() >= 1 && header.stored.pixels() <= kFuzzPixels, "{} x {}", header.stored.width,
                header.stored.height);
    return true;
  } catch (const DataError&) {
    return false;
  }
}

// Whether the bytes are a picture.
inline bool fuzz_image(Bytes bytes) {
  Image image;
  try {
    image = decode(bytes, "input", {.most_pixels = kFuzzPixels});
  } catch (const DataError&) {
    return false;
  }
  const ImageHeader header = read_header(bytes, "input", kFuzzPixels);
  BRAID_CHECK(image.size() == header.oriented(), "{} x {}", image.size().width, image.size().height);
  return true;
}

}  // namespace braid::testing
