#pragma once

#include <string>

#include "data/image/image.h"

namespace braid {

// The picture as a PNG file. ConfigError in a build without libpng.
std::string encode_png(const Image& image);

}  // namespace braid
