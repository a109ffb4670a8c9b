// What is known of a stored picture without decoding it.
#pragma once

#include "data/image/image.h"

namespace braid {

enum class ImageFormat { Jpeg, Png, Webp };

inline const char* name_of(ImageFormat format) {
  constexpr const char* kNames[] = {"JPEG", "PNG", "WebP"};
  return kNames[static_cast<int>(format)];
}

struct ImageHeader {
  ImageFormat format{};
  PixelSize stored{};   // as encoded
  int orientation = 1;  // of EXIF: 1 to 8; 1 if the file has none or an invalid one

  // The size after `orientation` is applied: 5 to 8 exchange width and height.
  PixelSize oriented() const { return orientation < 5 ? stored : PixelSize{stored.height, stored.width}; }
};

}  // namespace braid
