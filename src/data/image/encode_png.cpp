#include "data/image/encode_png.h"

#include <png.h>

#include "base/error.h"

namespace braid {

std::string encode_png(const Image& image) {
  png_image description{};
  description.version = PNG_IMAGE_VERSION;
  description.width = static_cast<png_uint_32>(image.size().width);
  description.height = static_cast<png_uint_32>(image.size().height);
  description.format = PNG_FORMAT_RGB;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(description);
  std::string file(size, '\0');
  const int done = png_image_write_to_memory(&description, file.data(), &size, 0, image.pixels().data(), 0, nullptr);
  BRAID_CHECK(done != 0, "libpng: {}", description.message);
  file.resize(size);
  return file;
}

}  // namespace braid
