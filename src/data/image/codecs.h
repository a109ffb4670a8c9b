// The decoders of the single formats; the build replaces one whose library is missing by a function that says so. Each
// returns the stored pixels, without orientation, and throws a DataError without a file's name.
#pragma once

#include <optional>

#include "data/image/bytes.h"
#include "data/image/format.h"

namespace braid {

Image decode_jpeg(Bytes bytes, PixelSize stored, std::optional<PixelSize> scale_for);
Image decode_png(Bytes bytes, PixelSize stored);
Image decode_webp(Bytes bytes);

// ConfigError for a build without the library of a format.
[[noreturn]] void throw_missing_library(ImageFormat format, const char* library);

}  // namespace braid
